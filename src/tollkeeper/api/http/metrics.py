"""Counts requests by operation and status, and measures their durations. The metrics contain no
tenant data."""

import time
from operator import itemgetter

from tollkeeper.services.request_log import RequestLog
from tollkeeper.services.tallies import (
    CounterTally,
    HistogramTally,
    OpenTally,
    collect_before_write,
    schedule_write,
)

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

_REQUESTS = CounterTally(
    "tollkeeper_requests", "Requests by operation and status.", ["operation", "status"]
)
_DURATIONS = HistogramTally(
    "tollkeeper_request_duration_seconds",
    "Seconds from a request's arrival to the end of its response.",
    ["operation"],
    buckets=_BUCKETS_S,
)
_OPEN_REQUESTS = OpenTally("tollkeeper_open_requests", "Requests being answered.")
# The operation, the status and the duration in seconds of each answered request that is not yet counted.
# Requests are counted when the metrics are written, or when the list has `_ANSWERED_MAX` entries.
_answered: list[tuple[str, int, float]] = []
_ANSWERED_MAX = 256


def request_opened() -> float:
    """Counts a request that has arrived. Returns the start time for `request_ended`."""
    _OPEN_REQUESTS.open += 1
    schedule_write()
    return time.perf_counter()


def request_ended(
    log: RequestLog, request_id: str, operation: str, status: int, opened: float
) -> None:
    """Counts a request that has ended, logs it, and measures the time from its arrival to the end of
    its response."""
    _OPEN_REQUESTS.open -= 1
    seconds = time.perf_counter() - opened
    log.request_ended(request_id, operation, status, seconds)
    if not _answered:
        schedule_write()
    _answered.append((operation, status, seconds))
    if len(_answered) >= _ANSWERED_MAX:
        _count_answered()


def _count_answered() -> None:
    _REQUESTS.add_each(map(itemgetter(0, 1), _answered))
    by_operation: dict[str, list[float]] = {}
    for operation, _, seconds in _answered:
        by_operation.setdefault(operation, []).append(seconds)
    for operation, durations in by_operation.items():
        _DURATIONS.observe((operation,), *durations)
    _answered.clear()


# Counts the buffered requests whenever the metrics are about to be written.
collect_before_write(_count_answered)
