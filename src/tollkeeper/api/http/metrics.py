"""Metrics of the API: requests by operation and status, and durations. No tenant data."""

import time
from types import TracebackType
from typing import Self

from tollkeeper.services.request_log import RequestLog
from tollkeeper.services.tallies import CounterTally, HistogramTally, OpenTally, schedule_write

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

_REQUESTS = CounterTally(
    "tollkeeper_requests", "Requests by operation and status.", ["operation", "status"]
)
_SECONDS = HistogramTally(
    "tollkeeper_request_duration_seconds",
    "Seconds from a request's arrival to the end of its response.",
    ["operation"],
    buckets=_BUCKETS_S,
)
_OPEN = OpenTally("tollkeeper_open_requests", "Requests being answered.")


class Observation:
    """Counts one request, measures the time from its arrival to the end of its response, and writes
    its line of the log."""

    __slots__ = ("_log", "_started", "operation", "request_id", "status")

    def __init__(self, log: RequestLog) -> None:
        self.operation = "none"
        # Stays if the caller leaves before there is a status.
        self.status = 499
        self.request_id = ""
        self._log = log
        self._started = 0.0

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        _OPEN.open += 1
        schedule_write()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        seconds = time.perf_counter() - self._started
        _OPEN.open -= 1
        _REQUESTS.add((self.operation, str(self.status)))
        _SECONDS.observe((self.operation,), seconds)
        self._log.request_ended(self.request_id, self.operation, self.status, seconds)
        schedule_write()
