"""Adds up changes to metrics in memory, and writes the sums to the Prometheus metrics at most every
half second.

Updating a metric of the Prometheus library is slow compared with the other work of a request: all
processes share the metrics, so each update writes to a memory-mapped file. A tally is an object that
collects the changes of one metric.
"""

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
# The maximum number of buffered values for one label set of a histogram. If there are more, they
# are written before the interval ends.
_VALUES_MAX = 4096
# The write functions of all tallies and of other buffers, such as the request log.
_writers: list[Callable[[], None]] = []
# Functions that add buffered data to tallies. They are called before the write functions.
_collectors: list[Callable[[], None]] = []


class CounterTally:
    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        self._counter = Counter(name, meaning, labels)
        self._counts: Counts[Labels] = Counts()
        _writers.append(self.write)

    def add(self, labels: Labels, amount: float = 1) -> None:
        self._counts[labels] += amount  # type: ignore[assignment]

    def add_each(self, labels: Iterable[Labels]) -> None:
        """Adds 1 for each element of `labels`."""
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
        # Values are sorted into buckets only when they are written, because sorting many values
        # together is much faster.
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
            # The public method of the library adds only one value at a time, which took 930
            # bytecodes per call. So this code uses private attributes of the library, which
            # accept sums. tests/services/test_tallies.py checks that these attributes still exist.
            histogram._sum.inc(sum(values))
            values.sort()
            ends = [*map(bisect_right, repeat(values), self._bounds), len(values)]
            for bucket, (start, end) in zip(histogram._buckets, pairwise((0, *ends)), strict=True):
                if end > start:
                    bucket.inc(end - start)


class OpenTally:
    """Counts objects that are currently open, as a gauge that is summed over all processes."""

    def __init__(self, name: str, meaning: str) -> None:
        self._gauge = Gauge(name, meaning, multiprocess_mode="livesum")
        self.open = 0
        _writers.append(lambda: self._gauge.set(self.open))


def collect_while_alive(collect: Callable[[], None]) -> None:
    """Registers the method `collect`, which adds buffered data to tallies, to be called before each
    write, as long as its object exists."""
    _add_while_alive(_collectors, collect)


def write_while_alive(write: Callable[[], None]) -> None:
    """Registers the method `write` to be called whenever tallies are written, as long as its object
    exists."""
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


# The event loop in which a write is scheduled. A flag would not suffice, because tests close event
# loops: a closed loop never runs its write, so a new loop must schedule another write.
_scheduled_in: asyncio.AbstractEventLoop | None = None


def schedule_write() -> None:
    """Schedules a write of all tallies after the interval, unless a write is already scheduled."""
    global _scheduled_in  # noqa: PLW0603 - one schedule for the process
    loop = asyncio.get_running_loop()
    if _scheduled_in is not loop:
        _scheduled_in = loop
        loop.call_later(_WRITE_INTERVAL_S, write_tallies)


def write_tallies() -> None:
    """Writes all tallies now. Called by `schedule_write`, when a process stops, and in tests."""
    global _scheduled_in  # noqa: PLW0603 - one schedule for the process
    _scheduled_in = None
    for callback in (*_collectors, *_writers):
        callback()
