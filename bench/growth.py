"""`make growth`: measures the CPU per call for growing numbers of organizations, keys and other things.

For each kind of thing, three gateways with separate databases are loaded in turns: the first has 100 of
them, the others have more. Only the ratios to the first gateway of the same run are meaningful.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import uvloop

from bench.curves import draw
from bench.figures import WHOLE_ANSWER, LoadFailed, Target, chat_requests, median
from bench.gateway import MODELS, Running, tollkeeper, wal_bytes
from bench.growth_books import Books, fill, key_value
from bench.interpreters import own_build
from bench.load import Response, connect, run_load
from bench.processes import resident_mb, tree_cpu_s
from bench.upstream import PACED, SILENT, serving_upstream

_HERE = Path(__file__).parent
_RESULT = _HERE / "growth.json"
_PICTURE = _HERE.parent / "docs" / "images" / "growth.svg"
_CONNECTIONS = 32
# The ratio that no curve should exceed.
TARGET = 1.1
# The number of streams that are opened at once, because the backlog of a socket is limited.
_OPEN_AT_ONCE = 200
# Each stream uses two of the 20,000 file descriptors that the gateway's process may open here.
_STREAMS_MAX = 9_000


@dataclass(frozen=True, slots=True)
class Point:
    """One gateway to load: the content of its database, the number of calling keys and open streams."""

    size: int
    books: Books
    callers: int
    streams: int = 0


def _organizations(size: int) -> Point:
    return Point(size, Books(organizations=size, keys=size), callers=size)


def _keys(size: int) -> Point:
    return Point(size, Books(keys=size), callers=size)


def _policies(size: int) -> Point:
    owners = max(100, size // 1000)
    books = Books(organizations=owners, keys=owners, policies=size, policy_organizations=owners)
    return Point(size, books, callers=100)


def _settled(size: int) -> Point:
    return Point(size, Books(settled=size), callers=100)


def _streams(size: int) -> Point:
    return Point(size, Books(), callers=100, streams=size)


LARGE = (100, 10_000, 1_000_000)
CURVES = {
    "organizations": ("organizations, each with a key that calls", _organizations, LARGE),
    "keys": ("keys that call, of 100 organizations", _keys, LARGE),
    "policies": ("published policies that do not apply", _policies, LARGE),
    "settled": ("settled calls in the ledger", _settled, LARGE),
    "streams": ("open streams", _streams, (100, 1_000, _STREAMS_MAX)),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over the rounds of one point."""

    size: int
    gateway_us: float
    database_us: float
    wal_bytes: float
    resident_mb: float
    # The CPU times divided by the CPU times of the first point.
    gateway_ratio: float
    database_ratio: float
    together_ratio: float


Rounds: TypeAlias = list[dict[str, float]]


def main() -> None:
    options = _options()
    # SIGTERM must stop all started processes, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    began, load_before = time.monotonic(), os.getloadavg()[0]
    curves: dict[str, list[Measured]] = {}
    for name in options.only:
        with serving_upstream() as upstream:
            curves[name] = _curve(name, upstream, options)
        machine = (
            f"{os.cpu_count()} cores, Python {sys.version.split()[0]} {own_build()}, load "
            f"{load_before:.1f} before and {os.getloadavg()[0]:.1f} after, "
            f"{time.monotonic() - began:.0f} s, {options.rounds} rounds of {options.requests} calls"
        )
        # Write after each curve, so that the curve is not lost if the next curve fails.
        _write(curves, machine, options)
    print(f"{machine}\n\n{table(curves)}")


def _write(curves: dict[str, list[Measured]], machine: str, options: argparse.Namespace) -> None:
    result = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "curves": {name: [asdict(point) for point in points] for name, points in curves.items()},
    }
    options.result.write_text(json.dumps(result, indent=2) + "\n")
    if set(curves) == set(CURVES):
        options.picture.write_text(_picture(curves, machine))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make growth")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CURVES))
    parser.add_argument("--sizes", type=_sizes, help="instead of those of each curve: 100,10000")
    parser.add_argument("--result", type=Path, default=_RESULT)
    parser.add_argument("--picture", type=Path, default=_PICTURE)
    return parser.parse_args()


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def _curve(name: str, upstream: int, options: argparse.Namespace) -> list[Measured]:
    title, point_of, sizes = CURVES[name]
    points = [point_of(size) for size in options.sizes or sizes]
    rounds: list[Rounds] = [[] for _ in points]
    with ExitStack() as stack:
        loads = []
        for point in points:
            _report_progress(f"{title}: {point.size:,}")
            loads.append(stack.enter_context(_running(point, upstream)))
        for load in loads:
            load.run(options.requests)  # a warm-up
        for number in range(options.rounds):
            _report_progress(f"{title}: round {number + 1} of {options.rounds}")
            for load, collected in zip(loads, rounds, strict=True):
                collected.append(load.run(options.requests))
    medians = [
        {figure: median([one[figure] for one in collected]) for figure in collected[0]}
        for collected in rounds
    ]
    return [
        _measured(point, found, medians[0]) for point, found in zip(points, medians, strict=True)
    ]


def _measured(point: Point, found: dict[str, float], first: dict[str, float]) -> Measured:
    together, together_first = (one["gateway_us"] + one["database_us"] for one in (found, first))
    return Measured(
        size=point.size,
        **found,
        gateway_ratio=found["gateway_us"] / first["gateway_us"],
        database_ratio=found["database_us"] / first["database_us"],
        together_ratio=together / together_first,
    )


class Load:
    """The load on one gateway. The keys take turns: all keys call before a key calls again."""

    def __init__(self, gateway: Running, callers: int) -> None:
        self._gateway = gateway
        self._callers = callers
        self._next = 0

    def run(self, count: int) -> dict[str, float]:
        gateway = self._gateway
        numbers = [(self._next + n) % self._callers for n in range(min(count, self._callers))]
        self._next = (self._next + count) % self._callers
        requests = chat_requests(self._target(numbers), PACED, stream=False)
        before = self._spent()
        result = uvloop.run(
            run_load(
                gateway.port, requests, connections=_CONNECTIONS, count=count, whole=WHOLE_ANSWER
            )
        )
        # Writes that happen shortly after a call also count for the call.
        time.sleep(0.5)
        gateway_s, database_s, wal = (
            after - was for after, was in zip(self._spent(), before, strict=True)
        )
        if result.failures:
            raise LoadFailed(result.failure_message)
        return {
            "gateway_us": 1e6 * gateway_s / count,
            "database_us": 1e6 * database_s / count,
            "wal_bytes": wal / count,
            "resident_mb": resident_mb(gateway.pid),
        }

    def _spent(self) -> tuple[float, float, float]:
        gateway = self._gateway
        return (
            tree_cpu_s(gateway.pid),
            tree_cpu_s(gateway.database_pid),
            wal_bytes(gateway.conninfo),
        )

    def _target(self, numbers: list[int]) -> Target:
        headers = [{"authorization": f"Bearer {key_value(number)}"} for number in numbers]
        return Target("tollkeeper", self._gateway.port, self._gateway.pid, MODELS, headers)

    @contextmanager
    def open_streams(self, count: int) -> Iterator[None]:
        """Keeps streams open that have sent their first piece and nothing since."""
        requests = chat_requests(self._target(list(range(self._callers))), SILENT, stream=True)
        loop = asyncio.new_event_loop()
        opened: list[Response] = []
        try:
            loop.run_until_complete(_open(self._gateway.port, requests, count, opened))
            yield
        finally:
            for stream in opened:
                stream.transport.close()
            loop.run_until_complete(asyncio.sleep(0.5))
            loop.close()


async def _open(port: int, requests: list[bytes], count: int, opened: list[Response]) -> None:
    for first in range(0, count, _OPEN_AT_ONCE):
        group = await asyncio.gather(
            *(connect(port) for _ in range(min(_OPEN_AT_ONCE, count - first)))
        )
        asked = [
            asyncio.ensure_future(stream.ask(requests[(first + n) % len(requests)]))
            for n, stream in enumerate(group)
        ]
        opened += group
        async with asyncio.timeout(60):
            while not all(stream.under_way for stream in group):
                if ended := [task.result()[0] for task in asked if task.done()]:
                    raise LoadFailed(f"streams ended before all were open: {ended[:3]}")
                await asyncio.sleep(0.02)


@contextmanager
def _running(point: Point, upstream: int) -> Iterator[Load]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tkb-")))
        folder.chmod(0o711)
        gateway = stack.enter_context(
            tollkeeper(
                folder, upstream, tenants=0, fill=lambda conninfo: fill(conninfo, point.books)
            )
        )
        load = Load(gateway, point.callers)
        if point.streams:
            stack.enter_context(load.open_streams(point.streams))
        yield load


def table(curves: dict[str, list[Measured]]) -> str:
    lines = [
        "| what | how many | gateway | database | log | gateway, ratio | database, ratio | both |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {CURVES[name][0]} | {point.size:,} | {point.gateway_us:.0f} µs "
        f"| {point.database_us:.0f} µs | {point.wal_bytes:,.0f} bytes | {point.gateway_ratio:.2f} "
        f"| {point.database_ratio:.2f} | {point.together_ratio:.2f} |"
        for name, points in curves.items()
        for point in points
    ]
    return "\n".join(lines)


def _picture(curves: dict[str, list[Measured]], machine: str) -> str:
    return draw(
        "CPU per call, of that with 100",
        machine,
        {
            CURVES[name][0]: [(point.size, point.together_ratio) for point in points]
            for name, points in curves.items()
        },
        target=TARGET,
    )


def _report_progress(step: str) -> None:
    print(f"... {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
