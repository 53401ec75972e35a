"""Counts requests by operation and status, and measures their durations. The metrics contain no
tenant data."""

import time
from operator import itemgetter

from tollkeeper.services.request_log import EndedRequest, RequestLog
from tollkeeper.services.tallies import (
    CounterTally,
    HistogramTally,
    OpenTally,
    collect_while_alive,
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
# The maximum number of ended requests that are not counted yet.
_ENDED_MAX = 256


class RequestMetrics:
    """Counts and logs requests. Ended requests are collected, and counted together whenever the
    metrics are written."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self._ended: list[EndedRequest] = []
        collect_while_alive(self._count_ended)

    def opened(self) -> float:
        """Counts a request that has arrived. Returns the start time for `ended`."""
        _OPEN_REQUESTS.open += 1
        schedule_write()
        return time.perf_counter()

    def ended(self, request_id: str, operation: str, status: int, opened_at: float) -> None:
        """Counts and logs a request whose response has ended."""
        _OPEN_REQUESTS.open -= 1
        ended = self._ended
        if not ended:
            schedule_write()
        ended.append((request_id, operation, status, opened_at, time.perf_counter()))
        if len(ended) >= _ENDED_MAX:
            self._count_ended()

    def _count_ended(self) -> None:
        ended, self._ended = self._ended, []
        _REQUESTS.add_each(map(itemgetter(1, 2), ended))
        by_operation: dict[str, list[float]] = {}
        for _, operation, _, opened_at, ended_at in ended:
            by_operation.setdefault(operation, []).append(ended_at - opened_at)
        for operation, durations in by_operation.items():
            _DURATIONS.observe((operation,), *durations)
        self._log.requests_ended(ended)
