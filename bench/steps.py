"""`python -m bench.steps`: counts the bytecodes of one plain chat request, by part of its path, and the
bytecodes of each further piece of a stream.

The count is the same on every machine and in nearly every run, so it shows whether a change makes the
path shorter. `tests/bench/test_steps.py` compares it with `step_targets`. The gateway, its client and
the counter share a process and an event loop. The upstream and the database are separate processes.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvloop

from bench.figures import WHOLE_ANSWER, Target, chat_requests, whole_stream
from bench.gateway import MODELS, make_tenants, write_config
from bench.load import run_load
from bench.profile import load, start_gateway
from bench.step_targets import PIECE_TARGET, TARGETS, part_of
from bench.upstream import PACED, PACES, SPACED, serving_upstream
from tollkeeper.core.runtime import tallies
from tollkeeper.core.runtime.overload import LIMIT_MIN
from tollkeeper.database.migrations import migrate
from tollkeeper.entry.descriptors import http_limits
from tollkeeper.http.arrivals import fair_arrivals
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import address_of, bind
from tollkeeper.setup import build_app, running_services
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.settings import load_settings

_HERE = str(Path(__file__).parent)
# Numbers of simultaneous calls. With more calls, a gateway that shares its cores with other
# programs is overloaded and rejects some of them.
CROWDS = (4, 8, 16, LIMIT_MIN)
_ROUNDS = 3
_CONNECTIONS = 32
# The number of simultaneous streams whose bytecodes are counted.
_STREAMS = 8


@dataclass(frozen=True)
class Function:
    """The average bytecodes (steps) and entries of one function per request or per piece."""

    name: str
    file: str
    steps: float
    entries: float

    @property
    def is_per_call(self) -> bool:
        """Return whether nearly every call enters the function. A connection's first call may not."""
        return self.entries > 0.85


class StepCounter:
    """Counts the bytecodes of every function outside of this folder."""

    def __init__(self) -> None:
        self._steps: Counter[CodeType] = Counter()
        self._entries: Counter[CodeType] = Counter()

    def __enter__(self) -> None:
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def functions(self, requests: int) -> list[Function]:
        """List the functions, those with the most bytecodes first."""
        return [
            Function(
                code.co_qualname, _short(code.co_filename), count / requests, entries / requests
            )
            for code, count in self._steps.most_common()
            if (entries := self._entries[code])
        ]

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_filename.startswith(_HERE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._entries[frame.f_code] += 1
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode":
            self._steps[frame.f_code] += 1
        return self._step


async def count_steps(
    requests: int, conninfo: str | None = None
) -> tuple[list[Function], list[Function]]:
    """Return the functions of one request, as the average of many that arrive together, and the functions
    of one piece of a stream. Start a database if none is given."""
    counter, stream_counter = StepCounter(), StepCounter()
    # Write metrics once for all requests, as a gateway does at a thousand requests per second.
    interval_s, tallies._WRITE_INTERVAL_S = tallies._WRITE_INTERVAL_S, 600
    try:
        async with _gateway(conninfo) as (target, flush):
            await _send(target, requests, flush)
            with counter:
                await _send(target, requests, flush)
            with stream_counter:
                await _send(target, _STREAMS, flush, stream=True)
    finally:
        tallies._WRITE_INTERVAL_S = interval_s
    pieces = stream_counter.functions(_STREAMS * PACES[SPACED].pieces)
    # Functions that run once per stream are left out. Functions that run once for several pieces,
    # which may arrive together, are not.
    return counter.functions(requests), [one for one in pieces if one.entries > 0.2]


async def _send(
    target: Target, count: int, flush: Callable[[], Awaitable[None]], *, stream: bool = False
) -> None:
    sent = chat_requests(target, SPACED if stream else PACED, stream=stream)
    whole = whole_stream(SPACED) if stream else WHOLE_ANSWER
    result = await run_load(
        target.port, sent, connections=min(count, _CONNECTIONS), count=count, whole=whole
    )
    assert not result.failures
    await flush()


@asynccontextmanager
async def _gateway(
    conninfo: str | None,
) -> AsyncIterator[tuple[Target, Callable[[], Awaitable[None]]]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tkb-")))
        folder.chmod(0o711)  # noqa: ASYNC240 - nothing else runs yet
        upstream = stack.enter_context(serving_upstream())
        if conninfo is None:
            conninfo = stack.enter_context(EmbeddedPostgres(folder)).conninfo
            await asyncio.to_thread(migrate, conninfo)
        config = write_config(folder, upstream)
        (tenant,) = await make_tenants(config, conninfo, 1)
        settings = load_settings(config)
        listener = bind("127.0.0.1", 0, setting="bench")
        port = int(address_of(listener).rpartition(":")[2])
        async with running_services(settings, conninfo, serving=True) as services:
            app = build_app(settings, services)
            calls = services.inference
            arrivals = fair_arrivals(calls.serves_others, lambda: calls.overload.is_full)
            server = HttpServer(app, http_limits(), arrivals)
            await server.start(listener)

            async def flush() -> None:
                await services.activity.drain()
                tallies.write_tallies()

            headers = [{"authorization": f"Bearer {tenant.key}"}]
            yield Target("tollkeeper", port, 0, MODELS, headers), flush
            await server.drain(5)


def steps_by_part(functions: list[Function]) -> dict[str, float]:
    """Return the bytecodes of each part for one call. Functions that run once per batch are left out,
    because their share depends on the sizes of batches. This includes storage, which only sees batches."""
    parts = dict.fromkeys(TARGETS, 0.0)
    for one in functions:
        if one.is_per_call and not one.file.startswith("tollkeeper/storage/"):
            parts[part_of(one.file)] += one.steps / one.entries * round(one.entries)
    return parts


def main() -> None:
    options = _options()
    # The gateway in this process writes a log line for each request.
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        functions, pieces = uvloop.run(count_steps(options.requests))
    used = [one for one in functions if one.is_per_call]
    print(
        f"one chat request: {sum(one.steps for one in functions):,.0f} bytecodes, "
        f"{sum(one.entries for one in functions):,.0f} entries, "
        f"{len(used)} functions in {len({one.file for one in used})} files\n"
    )
    print("| part | bytecodes per call | target |\n|---|--:|--:|")
    for part, steps in steps_by_part(functions).items():
        print(f"| {part} | {steps:,.0f} | {TARGETS[part]:,} |")
    print("\n| bytecodes | entries | function |\n|--:|--:|---|")
    for one in functions[: options.functions]:
        print(f"| {one.steps:.0f} | {one.entries:.2f} | {one.name} ({one.file}) |")
    print("\n| one piece of a stream | bytecodes |\n|---|--:|")
    print(f"| all (target {PIECE_TARGET:,}) | {sum(one.steps for one in pieces):,.0f} |")
    for one in pieces:
        print(f"| {one.name} ({one.file}) | {one.steps:.0f} |")
    if not options.no_times:
        print("\n| calls at a time | CPU per request |\n|---|---|")
        for connections, us in _times(options.requests).items():
            print(f"| {connections} | {us:.0f} us |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.steps")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--functions", type=int, default=30, help="how many of them are printed")
    parser.add_argument("--no-times", action="store_true", help="only count")
    return parser.parse_args()


def _times(requests: int) -> dict[int, float]:
    """Return the lowest CPU per request of the rounds, in microseconds, by number of simultaneous calls."""
    with ExitStack() as stack:
        target = start_gateway(stack)
        load(target, requests)
        rounds = [
            {crowd: load(target, requests, crowd) for crowd in CROWDS} for _ in range(_ROUNDS)
        ]
    return {crowd: min(one[crowd] for one in rounds) for crowd in CROWDS}


def _short(path: str) -> str:
    """Return a path relative to our sources, to the installed libraries or to the standard library."""
    for folder in ("/src/", "/site-packages/", "/lib/python3.11/"):
        path = path.rpartition(folder)[2]
    return path


if __name__ == "__main__":
    main()
