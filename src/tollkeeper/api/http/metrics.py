"""Metrics of the API: requests by operation and status, and durations. No tenant data."""

import asyncio
import time
from collections import Counter as Tally
from types import TracebackType
from typing import Self

from prometheus_client import Counter, Gauge, Histogram

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
# An update of a metric that all processes share is slow compared with the rest of a request. Each
# request is therefore counted in memory, and the counts are written at this interval.
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
    """The counts of this process since they were last written."""

    def __init__(self) -> None:
        self.open = 0
        self._ended: Tally[tuple[str, int]] = Tally()
        self._seconds: list[tuple[str, float]] = []
        # The event loop that has a write scheduled. Tests close loops, and a closed loop never
        # runs the write, so a new loop schedules one of its own.
        self._scheduled_in: asyncio.AbstractEventLoop | None = None

    def schedule_write(self) -> None:
        loop = asyncio.get_running_loop()
        if self._scheduled_in is not loop:
            self._scheduled_in = loop
            loop.call_later(_WRITE_INTERVAL_S, self.write)

    def ended(self, operation: str, status: int, seconds: float) -> None:
        self._ended[operation, status] += 1
        self._seconds.append((operation, seconds))

    def write(self) -> None:
        self._scheduled_in = None
        _OPEN.set(self.open)
        ended, self._ended = self._ended, Tally()
        for (operation, status), count in ended.items():
            _REQUESTS.labels(operation, str(status)).inc(count)
        seconds, self._seconds = self._seconds, []
        histograms = {operation: _SECONDS.labels(operation) for operation, _ in seconds}
        for operation, duration in seconds:
            histograms[operation].observe(duration)


_tally = _Tally()


def write_metrics() -> None:
    """Writes the counts at once, for a process that ends."""
    _tally.write()


class Observation:
    """Counts one request and measures the time from its arrival to the end of its answer."""

    __slots__ = ("_started", "operation", "status")

    def __init__(self) -> None:
        self.operation = "none"
        # Stays if the caller leaves before there is a status.
        self.status = 499
        self._started = 0.0

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        _tally.open += 1
        _tally.schedule_write()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _tally.open -= 1
        _tally.ended(self.operation, self.status, time.perf_counter() - self._started)
        _tally.schedule_write()
