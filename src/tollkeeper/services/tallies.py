"""Counts metrics in memory and writes them together.

Updating a metric that all processes share is slow compared with the rest of a request, because it
writes to a memory-mapped file. So changes are added up here first, and the sums are written at an
interval.
"""

import asyncio
from bisect import bisect_right
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias
from weakref import WeakMethod

from prometheus_client import Counter, Gauge, Histogram

Labels: TypeAlias = tuple[str | int, ...]

_WRITE_INTERVAL_S = 0.5
# The maximum number of buffered values of one histogram; more are written before the interval ends.
_VALUES_MAX = 4096
# The writers of all tallies of this process, called at the interval.
_writers: list[Callable[[], None]] = []
# Functions that add buffered data to tallies before they are written.
_collectors: list[Callable[[], None]] = []


class CounterTally:
    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        self._counter = Counter(name, meaning, labels)
        self._counts: Counts[Labels] = Counts()
        _writers.append(self.write)

    def add(self, labels: Labels, amount: float = 1) -> None:
        self._counts[labels] += amount  # type: ignore[assignment]

    def add_each(self, labels: Iterable[Labels]) -> None:
        """Adds one for each of them."""
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
        # Values are sorted into buckets when they are written, which takes a fraction of the time.
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
        kept, self._values = self._values, {}
        for labels, values in kept.items():
            histogram = self._histogram.labels(*labels) if labels else self._histogram
            # The library can only add one value at a time, which took 930 of a call's 10,500
            # bytecodes. Its internal parts accept sums; tests/services/test_tallies.py checks that
            # they still exist.
            histogram._sum.inc(sum(values))
            values.sort()
            ends = [*(bisect_right(values, bound) for bound in self._bounds), len(values)]
            for bucket, (start, end) in zip(histogram._buckets, pairwise((0, *ends)), strict=True):
                if end > start:
                    bucket.inc(end - start)


class OpenTally:
    """Counts open objects in all processes together."""

    def __init__(self, name: str, meaning: str) -> None:
        self._gauge = Gauge(name, meaning, multiprocess_mode="livesum")
        self.open = 0
        _writers.append(lambda: self._gauge.set(self.open))


def collect_first(collect: Callable[[], None]) -> None:
    """Calls `collect` before tallies are written, to add buffered data."""
    _collectors.append(collect)


def collect_while_alive(collect: Callable[[], None]) -> None:
    """Does the same for a method, as long as its object lives."""
    _add_while_alive(_collectors, collect)


def write_also(write: Callable[[], None]) -> None:
    """Calls `write` at the same interval, as long as its object lives."""
    _add_while_alive(_writers, write)


def _add_while_alive(steps: list[Callable[[], None]], step: Callable[[], None]) -> None:
    known = WeakMethod(step)

    def run_if_alive() -> None:
        method = known()
        if method is None:
            steps.remove(run_if_alive)
        else:
            method()

    steps.append(run_if_alive)


# The event loop that has a write scheduled. Tests close loops, and a closed loop never runs the
# write, so a new loop schedules its own.
_scheduled_in: asyncio.AbstractEventLoop | None = None


def schedule_write() -> None:
    """Schedules a write within the interval."""
    global _scheduled_in  # noqa: PLW0603 - one schedule for the process
    loop = asyncio.get_running_loop()
    if _scheduled_in is not loop:
        _scheduled_in = loop
        loop.call_later(_WRITE_INTERVAL_S, write_tallies)


def write_tallies() -> None:
    """Writes everything at once: at the interval, in an ending process, and in tests."""
    global _scheduled_in  # noqa: PLW0603 - one schedule for the process
    _scheduled_in = None
    for step in (*_collectors, *_writers):
        step()
