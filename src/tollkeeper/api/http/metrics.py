"""Metrics of the API: requests by operation and status, and durations. No tenant data."""

import time

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


def request_opened() -> float:
    """Counts a request that has arrived. The result is for `request_ended`."""
    _OPEN.open += 1
    schedule_write()
    return time.perf_counter()


def request_ended(
    log: RequestLog, request_id: str, operation: str, status: int, opened: float
) -> None:
    _OPEN.open -= 1
    request_answered(log, request_id, operation, status, time.perf_counter() - opened)


def request_answered(
    log: RequestLog, request_id: str, operation: str, status: int, seconds: float
) -> None:
    """Counts a request, measures the time from its arrival to the end of its response, and writes its
    line of the log."""
    log.request_ended(request_id, operation, status, seconds)
    _REQUESTS.add((operation, str(status)))
    _SECONDS.observe((operation,), seconds)
    schedule_write()
