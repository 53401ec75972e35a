"""Measures single figures of a target, which is a port with a process tree."""

import asyncio
import json
import statistics
from dataclasses import dataclass

import uvloop

from bench.load import Response, Result, Whole, connect, request_bytes, run_load
from bench.processes import Spent, named, resident_bytes, tree
from bench.upstream import PACES

# The number of streams that are open before the memory of further streams is measured.
_STREAMS_BEFORE = 16
_OPEN_WITHIN_S = 10.0
WHOLE_ANSWER = Whole(b'"choices"', 1)
CHAT_PATH = "/v1/chat/completions"
_TEXT = "The quick brown fox jumps over the lazy dog. " * 20


class LoadFailed(Exception):
    """Some requests were not answered completely, so the measurement has no result."""


@dataclass(frozen=True)
class Target:
    """A server for chat completions that is measured."""

    name: str
    port: int
    # The root of the server's process tree. 0 means that its CPU time is not measured.
    pid: int
    # Maps each model of the upstream to its name at this target.
    models: dict[str, str]
    headers: list[dict[str, str]]
    # The share of the requests that the target gets. It is small for slow targets, to save time.
    share: float = 1.0
    # Whether the target leads a process group that is paused while other targets are measured.
    pausable: bool = False
    path: str = CHAT_PATH


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
    return [request_bytes(target.path, headers, encoded) for headers in target.headers]


def whole_stream(model: str) -> Whole:
    """Returns the mark of a complete stream: every piece of the model, and the end of the stream."""
    return Whole(b"data:", PACES[model].pieces + 1)


def measure(
    target: Target, model: str, *, stream: bool, connections: int, count: int
) -> tuple[Result, Spent]:
    """Returns the result of the load, and the resources that the target's process tree spent on it."""
    requests = chat_requests(target, model, stream=stream)
    pids = tree(target.pid) if target.pid else []
    before = Spent.by(pids)
    whole = whole_stream(model) if stream else WHOLE_ANSWER
    result = uvloop.run(
        run_load(target.port, requests, connections=connections, count=count, whole=whole)
    )
    spent = Spent.by(pids) - before
    if result.failures:
        raise LoadFailed(result.failure_message)
    return result, spent


def first_byte_ms(target: Target, model: str, *, stream: bool, count: int) -> list[float]:
    """Returns the times to the first byte of the body for a single client, in milliseconds."""
    result, _ = measure(target, model, stream=stream, connections=1, count=count)
    return [1000 * seconds for seconds in result.first_byte_s]


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def median(values: list[float]) -> float:
    return statistics.median(values)


def worker_resident_mb(pid: int) -> float:
    workers = named(tree(pid), "tollkeeper.entry.worker")
    return max(resident_bytes(worker) for worker in workers) / 1e6


def stream_resident_kib(target: Target, model: str, streams: int) -> float:
    """Returns the memory in KiB that each further open stream adds to a warm worker.

    Some streams are open before the measurement, so memory that is needed only once is not counted. The
    worker must not have had as many open streams earlier. Its heap would already be large enough, and
    the result would be zero.
    """
    workers = named(tree(target.pid), "tollkeeper.entry.worker")
    request = chat_requests(target, model, stream=True)[0]

    async def run() -> float:
        first_streams = await _open_streams(target, request, _STREAMS_BEFORE)
        before = sum(map(resident_bytes, workers))
        further_streams = await _open_streams(target, request, streams)
        during = sum(map(resident_bytes, workers))
        opened = [*first_streams, *further_streams]
        if not all(stream.under_way for stream in opened):
            raise LoadFailed("not every stream was open when the memory was read")
        for stream in opened:
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
    # The memory is stable after a pause. The calling function closes the streams.
    await asyncio.sleep(1)
    return opened
