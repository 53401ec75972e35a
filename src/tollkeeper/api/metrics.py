"""What the API counts: requests by operation and status, and how long they took. No tenant data."""

import time
from types import TracebackType
from typing import Self

from prometheus_client import Counter, Gauge, Histogram

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

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
# Looking a child up by its labels costs more than counting with it.
_counters: dict[tuple[str, int], Counter] = {}
_histograms: dict[str, Histogram] = {}


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
        _OPEN.inc()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _OPEN.dec()
        key = (self.operation, self.status)
        if key not in _counters:
            _counters[key] = _REQUESTS.labels(self.operation, str(self.status))
        if self.operation not in _histograms:
            _histograms[self.operation] = _SECONDS.labels(self.operation)
        _counters[key].inc()
        _histograms[self.operation].observe(time.perf_counter() - self._started)
