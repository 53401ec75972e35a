"""What the API counts: requests by operation and status, and how long they took. No tenant data."""

import asyncio
import time
from collections import Counter as Tally
from types import TracebackType
from typing import Self

from prometheus_client import Counter, Gauge, Histogram

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
# Counting where all processes see it costs more than some whole parts of a call: each request is
# counted in memory, and what has come together is written this often.
_WRITE_INTERVAL_S = 0.5

_REQUESTS = Counter(
    "tollkeeper_requests", "Requests by operation and status.", ["operation", "status"]
)
_SECONDS = Histogram(
    "tollkeeper_request_seconds",
    "Seconds from a request's arrival to the end of its answer.",
    ["operation"],
    buckets=_BUCKETS_S,
)
_OPEN = Gauge("tollkeeper_open_requests", "Requests being answered.", multiprocess_mode="livesum")


class _Tally:
    """What was counted since the last writing."""

    def __init__(self) -> None:
        self.open = 0
        self._ended: Tally[tuple[str, int]] = Tally()
        self._seconds: list[tuple[str, float]] = []
        # The loop that will write; one that was closed meanwhile (a test's) will not.
        self._due_in: asyncio.AbstractEventLoop | None = None

    def will_change(self) -> None:
        loop = asyncio.get_running_loop()
        if self._due_in is not loop:
            self._due_in = loop
            loop.call_later(_WRITE_INTERVAL_S, self.write)

    def ended(self, operation: str, status: int, seconds: float) -> None:
        self._ended[operation, status] += 1
        self._seconds.append((operation, seconds))

    def write(self) -> None:
        self._due_in = None
        _OPEN.set(self.open)
        ended, self._ended = self._ended, Tally()
        for (operation, status), count in ended.items():
            _REQUESTS.labels(operation, str(status)).inc(count)
        seconds, self._seconds = self._seconds, []
        histograms = {operation: _SECONDS.labels(operation) for operation, _ in seconds}
        for operation, taken in seconds:
            histograms[operation].observe(taken)


_tally = _Tally()


def write_metrics() -> None:
    """For a process that ends: what it has counted and not written yet."""
    _tally.write()


class Observation:
    """One request, from its arrival to the end of its answer, however it ends."""

    __slots__ = ("_started", "operation", "status")

    def __init__(self) -> None:
        self.operation = "none"
        # What stays where the caller left before there was anything to say.
        self.status = 499
        self._started = 0.0

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        _tally.open += 1
        _tally.will_change()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _tally.open -= 1
        _tally.ended(self.operation, self.status, time.perf_counter() - self._started)
        _tally.will_change()
