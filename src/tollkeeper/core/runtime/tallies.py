"""Adds up changes to metrics, and writes the sums at most every half second: all processes share
the metrics, so each update writes to a memory-mapped file, which is slow beside the rest of a
request."""

import asyncio
from bisect import bisect_right
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import TypeAlias
from weakref import WeakMethod

from prometheus_client import Counter, Gauge, Histogram

Labels: TypeAlias = tuple[str | int, ...]

_WRITE_INTERVAL_S = 0.5
# Of one label set of a histogram. Beyond this, they're written before the interval ends.
_VALUES_MAX = 4096
# Of all tallies and other buffers, such as the request log.
_writers: list[Callable[[], None]] = []
# They add buffered data to tallies, so they run before the writers.
_collectors: list[Callable[[], None]] = []


class CounterTally:
    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        self._counter = Counter(name, meaning, labels)
        self._counts: Counts[Labels] = Counts()
        _writers.append(self.write)

    def add(self, labels: Labels, amount: float = 1) -> None:
        self._counts[labels] += amount  # type: ignore[assignment]

    def add_each(self, labels: Iterable[Labels]) -> None:
        """1 for each."""
        self._counts.update(labels)

    def write(self) -> None:
        counts, self._counts = self._counts, Counts()
        for labels, amount in counts.items():
            counter = self._counter.labels(*labels) if labels else self._counter
            counter.inc(amount)


class HistogramTally:
    def __init__(
        self, name: str, meaning: str, labels: Sequence[str], *, buckets: Sequence[float]
    ) -> None:
        self._histogram = Histogram(name, meaning, labels, buckets=buckets)
        self._bounds = tuple(buckets)
        # Sorted into buckets only when written, because many values together are much faster.
        self._values: dict[Labels, list[float]] = {}
        _writers.append(self.write)

    def observe(self, labels: Labels, *observed: float) -> None:
        if not observed:
            return
        values = self._values.setdefault(labels, [])
        values += observed
        if len(values) >= _VALUES_MAX:
            self.write()

    def write(self) -> None:
        collected, self._values = self._values, {}
        for labels, values in collected.items():
            histogram = self._histogram.labels(*labels) if labels else self._histogram
            # The public method adds one value at a time, which took 930 bytecodes per call. The
            # private attributes accept sums, and tests/core/runtime/test_tallies.py checks that they're
            # still there.
            histogram._sum.inc(sum(values))
            values.sort()
            ends = [*map(bisect_right, repeat(values), self._bounds), len(values)]
            for bucket, (start, end) in zip(histogram._buckets, pairwise((0, *ends)), strict=True):
                if end > start:
                    bucket.inc(end - start)


class OpenTally:
    """What's open now, summed over all processes."""

    def __init__(self, name: str, meaning: str) -> None:
        self._gauge = Gauge(name, meaning, multiprocess_mode="livesum")
        self.open = 0
        _writers.append(lambda: self._gauge.set(self.open))


def collect_while_alive(collect: Callable[[], None]) -> None:
    """Before each write, as long as the method's object exists."""
    _add_while_alive(_collectors, collect)


def write_while_alive(write: Callable[[], None]) -> None:
    """With each write of tallies, as long as the method's object exists."""
    _add_while_alive(_writers, write)


def _add_while_alive(callbacks: list[Callable[[], None]], callback: Callable[[], None]) -> None:
    weak_method = WeakMethod(callback)

    def run_if_alive() -> None:
        method = weak_method()
        if method is None:
            callbacks.remove(run_if_alive)
        else:
            method()

    callbacks.append(run_if_alive)


# No flag: a closed event loop (in tests) never runs its write, so a new one must schedule it.
_scheduled_in: asyncio.AbstractEventLoop | None = None


def schedule_write() -> None:
    global _scheduled_in  # noqa: PLW0603 - one schedule for the process
    loop = asyncio.get_running_loop()
    if _scheduled_in is not loop:
        _scheduled_in = loop
        loop.call_later(_WRITE_INTERVAL_S, write_tallies)


def write_tallies() -> None:
    global _scheduled_in  # noqa: PLW0603 - one schedule for the process
    _scheduled_in = None
    for callback in (*_collectors, *_writers):
        callback()
