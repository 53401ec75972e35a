"""The single measurements. Each takes what it measures as a port and a process tree."""

import asyncio
import json
import statistics
from dataclasses import dataclass

import uvloop

from bench.load import Result, request_bytes, run_load
from bench.processes import cpu_s, named, resident_bytes, tree

_TEXT = "The quick brown fox jumps over the lazy dog. " * 20


@dataclass(frozen=True)
class Target:
    """Something that answers chat completions."""

    name: str
    port: int
    # The root of its process tree; 0: its cost is not measured.
    pid: int
    path: str
    model: str
    headers: list[dict[str, str]]


def chat_requests(target: Target, *, stream: bool) -> list[bytes]:
    body = {
        "model": target.model,
        "messages": [
            {"role": "system", "content": "You are a benchmark."},
            {"role": "user", "content": _TEXT},
        ],
        "max_tokens": 256,
        "stream": stream,
    }
    encoded = json.dumps(body).encode()
    return [request_bytes(target.path, headers, encoded) for headers in target.headers]


def measure(target: Target, *, stream: bool, connections: int, count: int) -> tuple[Result, float]:
    """The load's own result, and the CPU seconds that the target's tree has spent on it."""
    pids = tree(target.pid) if target.pid else []
    before = cpu_s(pids)
    requests = chat_requests(target, stream=stream)
    result = uvloop.run(run_load(target.port, requests, connections=connections, count=count))
    if result.failures:
        raise RuntimeError(f"{target.name}: {result.failures} of {result.requests} requests failed")
    return result, cpu_s(pids) - before


def latency_ms(target: Target, count: int) -> list[float]:
    """First body byte of a lone caller, in milliseconds."""
    result, _ = measure(target, stream=False, connections=1, count=count)
    return sorted(1000 * seconds for seconds in result.first_byte_s)


def quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def median(values: list[float]) -> float:
    return statistics.median(values)


def worker_resident_mb(pid: int) -> float:
    workers = named(tree(pid), "tollkeeper.hosting.worker")
    return max(resident_bytes(worker) for worker in workers) / 1e6


def stream_resident_kib(target: Target, streams: int) -> float:
    """Memory that each further open stream adds to a worker."""
    workers = named(tree(target.pid), "tollkeeper.hosting.worker")
    requests = chat_requests(target, stream=True)

    async def run() -> float:
        warm = await run_load(target.port, requests, connections=streams, count=streams)
        assert not warm.failures
        before = sum(map(resident_bytes, workers))
        load = asyncio.create_task(
            run_load(target.port, requests, connections=streams, count=streams)
        )
        await asyncio.sleep(0.5)
        during = sum(map(resident_bytes, workers))
        await load
        return max(0, during - before) / 1024 / streams

    return uvloop.run(run())
