"""The single measurements. Each takes what it measures as a port and a process tree."""

import asyncio
import json
import statistics
from dataclasses import dataclass

import uvloop

from bench.load import Response, Result, Whole, connect, request_bytes, run_load
from bench.processes import cpu_s, named, resident_bytes, tree
from bench.upstream import PACES

# Streams that are already open when the further ones are counted.
_STREAMS_BEFORE = 16
_OPEN_WITHIN_S = 10.0
WHOLE_ANSWER = Whole(b'"choices"', 1)
_PATH = "/v1/chat/completions"
_TEXT = "The quick brown fox jumps over the lazy dog. " * 20


class LoadFailed(Exception):
    """Not every request was answered in full: no figure comes out of such a run."""


@dataclass(frozen=True)
class Target:
    """Something that answers chat completions."""

    name: str
    port: int
    # The root of its process tree; 0: its cost is not measured.
    pid: int
    # The name it knows each model of the upstream by.
    models: dict[str, str]
    headers: list[dict[str, str]]
    # The part of the full load that it gets: a slow one would take the run's time for itself.
    share: float = 1.0
    # It heads a process group that sleeps while others are measured.
    pausable: bool = False


def chat_requests(target: Target, model: str, *, stream: bool) -> list[bytes]:
    body = {
        "model": target.models[model],
        "messages": [
            {"role": "system", "content": "You are a benchmark."},
            {"role": "user", "content": _TEXT},
        ],
        "max_tokens": 256,
        "stream": stream,
    }
    encoded = json.dumps(body).encode()
    return [request_bytes(_PATH, headers, encoded) for headers in target.headers]


def whole_stream(model: str) -> Whole:
    """Every piece and the end mark."""
    return Whole(b"data:", PACES[model].pieces + 1)


def measure(
    target: Target, model: str, *, stream: bool, connections: int, count: int
) -> tuple[Result, float]:
    """The load's own result, and the CPU seconds that the target's tree has spent on it."""
    requests = chat_requests(target, model, stream=stream)
    pids = tree(target.pid) if target.pid else []
    before = cpu_s(pids)
    whole = whole_stream(model) if stream else WHOLE_ANSWER
    result = uvloop.run(
        run_load(target.port, requests, connections=connections, count=count, whole=whole)
    )
    spent = cpu_s(pids) - before
    if result.failures:
        raise LoadFailed(f"{result.failures} of {result.requests} requests failed")
    return result, spent


def first_byte_ms(target: Target, model: str, *, stream: bool, count: int) -> list[float]:
    """First body byte of a lone caller, in milliseconds."""
    result, _ = measure(target, model, stream=stream, connections=1, count=count)
    return [1000 * seconds for seconds in result.first_byte_s]


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def median(values: list[float]) -> float:
    return statistics.median(values)


def worker_resident_mb(pid: int) -> float:
    workers = named(tree(pid), "tollkeeper.hosting.worker")
    return max(resident_bytes(worker) for worker in workers) / 1e6


def stream_resident_kib(target: Target, model: str, streams: int) -> float:
    """Memory that each further open stream adds to a warm worker.

    A few streams are open already, so that nothing which exists once is counted. The worker must not
    have had that many open before: its heap would still be as large, and the answer nothing at all.
    """
    workers = named(tree(target.pid), "tollkeeper.hosting.worker")
    request = chat_requests(target, model, stream=True)[0]

    async def run() -> float:
        few = await _open_streams(target, request, _STREAMS_BEFORE)
        before = sum(map(resident_bytes, workers))
        further = await _open_streams(target, request, streams)
        during = sum(map(resident_bytes, workers))
        if not all(stream.under_way for stream in [*few, *further]):
            raise LoadFailed("not every stream was open when the memory was read")
        for stream in [*few, *further]:
            stream.transport.close()
        return (during - before) / 1024 / streams

    return uvloop.run(run())


async def _open_streams(target: Target, request: bytes, count: int) -> list[Response]:
    opened = [await connect(target.port) for _ in range(count)]
    asked = [asyncio.create_task(stream.ask(request)) for stream in opened]
    async with asyncio.timeout(_OPEN_WITHIN_S):
        while not all(stream.under_way for stream in opened):
            if any(task.done() for task in asked):
                raise LoadFailed("a stream ended before all were open")
            await asyncio.sleep(0.05)
    # Nobody waits for their ends: they are closed once they were counted.
    await asyncio.sleep(1)
    return opened
