"""Metrics of calls. Labels are models and backends of the catalogue, so the operator controls how
many time series there are; none names a tenant.

Amounts are floats in USD here, because metrics needn't be exact. Everywhere else they're integers.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, repeat
from operator import truediv
from typing import Any, Literal, TypeAlias

from prometheus_client import Counter

from tollkeeper.core.activity import RecordColumns
from tollkeeper.core.money import PICOUSD_PER_USD
from tollkeeper.core.runtime.tallies import CounterTally, HistogramTally

_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_OVERHEAD_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

_CALLS = CounterTally(
    "tollkeeper_calls",
    "Calls by operation, model, backend and the status that the client got.",
    ["operation", "model", "backend", "status"],
)
_SETTLEMENTS = CounterTally(
    "tollkeeper_settlements",
    "Calls by the state of their reservation: settled, released, unsettled, or none (no reservation).",
    ["model", "settlement"],
)
_DURATION = HistogramTally(
    "tollkeeper_call_duration_seconds",
    "Seconds from a call's arrival to its end, settlement included.",
    ["operation", "model", "backend"],
    buckets=_BUCKETS_S,
)
_FIRST_BYTE = HistogramTally(
    "tollkeeper_call_first_byte_seconds",
    "Seconds from a call's arrival to the first piece of the backend's answer.",
    ["model", "backend"],
    buckets=_BUCKETS_S,
)
_UPSTREAM = HistogramTally(
    "tollkeeper_upstream_duration_seconds",
    "Seconds that a backend took, from the dispatch of a call to the end of its answer.",
    ["model", "backend"],
    buckets=_BUCKETS_S,
)
_OVERHEAD = HistogramTally(
    "tollkeeper_gateway_overhead_seconds",
    "Seconds of a call in which it waited neither for the backend nor for the judge.",
    ["operation"],
    buckets=_OVERHEAD_BUCKETS_S,
)
_TOKENS = CounterTally(
    "tollkeeper_tokens",
    "Tokens that were charged. `cached` and `cache_write` are part of `prompt`, `reasoning` of "
    "`completion`.",
    ["model", "kind"],
)
_COST = CounterTally(
    "tollkeeper_cost_usd", "Cost of settled calls in USD, rounded. The ledger is exact.", ["model"]
)
_IMPOSSIBLE_USAGE = Counter(
    "tollkeeper_absurd_usage_reports",
    "Usage reports that cannot be true and were not charged, by backend.",
    ["backend"],
)
_EXCESSIVE_USAGE = Counter(
    "tollkeeper_excessive_usage_reports",
    "Usage reports that exceed the model's declared context, by backend. They are charged, but the "
    "declaration is wrong.",
    ["backend"],
)
_ABOVE_BOUND = Counter(
    "tollkeeper_usage_above_bound_reports",
    "Usage reports above the limit that the hold was computed for, by backend and limit.",
    ["backend", "bound"],
)
_OVERAGE = Counter(
    "tollkeeper_overage_usd",
    "Cost of calls beyond their holds in USD, by backend.",
    ["backend"],
)
_OVERAGE_CALLS = Counter(
    "tollkeeper_overage_calls",
    "Calls that cost more than their hold, by backend.",
    ["backend"],
)
_REPORTED_COST = Counter(
    "tollkeeper_reported_cost_usd",
    "Cost of settled calls as their backends report it, in USD, by backend.",
    ["backend"],
)
_DIFFERENCE = Counter(
    "tollkeeper_cost_difference_usd",
    "Difference between reported and charged cost in USD, by backend and direction.",
    ["backend", "direction"],
)
_DIFFERENCES = Counter(
    "tollkeeper_cost_differences",
    "Settled calls whose reported cost differs from the charged cost, by backend and direction.",
    ["backend", "direction"],
)
_DROPPED_ACTIVITY = Counter(
    "tollkeeper_dropped_activity_records",
    "Activity records that were dropped: the database was unavailable for too long, or refused them.",
)


_US_PER_S = 1_000_000
# With their fields in an activity record.
_KINDS_OF_TOKENS = {
    "prompt": "prompt_tokens",
    "completion": "completion_tokens",
    "cached": "cached_tokens",
    "cache_write": "cache_write_tokens",
    "reasoning": "reasoning_tokens",
}
# The labels of a call's metrics, with their fields in an activity record.
_Labels: TypeAlias = tuple[str, str, str, int, str]
_LABELS = ("operation", "model", "declared_backend", "status", "settlement")
_COUNTED = (
    *("duration_us", "first_piece_us", "upstream_us", "overhead_us", "cost_picousd"),
    *_KINDS_OF_TOKENS.values(),
)


def count_calls(calls: RecordColumns) -> None:
    """Updates each metric once per combination of labels, in C, which is much faster than once per
    call."""
    labels: list[_Labels] = list(zip(*map(calls.__getitem__, _LABELS), strict=True))
    positions = sorted(range(len(labels)), key=labels.__getitem__)
    for labels_of_group, group in groupby(positions, labels.__getitem__):
        selected = list(group)
        columns = {name: [*map(calls[name].__getitem__, selected)] for name in _COUNTED}
        _count_calls_with_labels(labels_of_group, columns)


def _count_calls_with_labels(labels: _Labels, calls: RecordColumns) -> None:
    operation, model, backend, status, settlement = labels
    count = len(calls["duration_us"])
    _CALLS.add((operation, model, backend, status), count)
    _SETTLEMENTS.add((model, settlement), count)
    _DURATION.observe((operation, model, backend), *_seconds(calls["duration_us"]))
    _FIRST_BYTE.observe((model, backend), *_seconds(calls["first_piece_us"]))
    _UPSTREAM.observe((model, backend), *_seconds(calls["upstream_us"]))
    _OVERHEAD.observe((operation,), *_seconds(calls["overhead_us"]))
    used = _without_none(calls["prompt_tokens"])
    if used:
        for kind, field in _KINDS_OF_TOKENS.items():
            _TOKENS.add((model, kind), sum(_without_none(calls[field])))
        cost = sum(_without_none(calls["cost_picousd"]))
        _COST.add((model,), cost / PICOUSD_PER_USD)


def _without_none(values: Sequence[Any]) -> Sequence[int]:
    return values if None not in values else [value for value in values if value is not None]


def _seconds(durations_us: Sequence[int | None]) -> Iterator[float]:
    return map(truediv, _without_none(durations_us), repeat(_US_PER_S))


_BY_BACKEND = (_IMPOSSIBLE_USAGE, _EXCESSIVE_USAGE, _OVERAGE, _OVERAGE_CALLS, _REPORTED_COST)
_DIRECTIONS = ("reported_more", "charged_more")


def begin_counting(backends: Iterable[str]) -> None:
    """Shows the backends' counters as 0. If one began with its first event, Prometheus would see no
    increase, and no alert rule would fire."""
    for backend in backends:
        for counter in _BY_BACKEND:
            counter.labels(backend)
        for direction in _DIRECTIONS:
            _DIFFERENCE.labels(backend, direction)
            _DIFFERENCES.labels(backend, direction)


def count_impossible_usage(backend: str) -> None:
    _IMPOSSIBLE_USAGE.labels(backend).inc()


def count_excessive_usage(backend: str) -> None:
    _EXCESSIVE_USAGE.labels(backend).inc()


def count_usage_above_bound(backend: str, bound: Literal["prompt", "output"]) -> None:
    _ABOVE_BOUND.labels(backend, bound).inc()


def count_overage(backend: str, overage_picousd: int) -> None:
    _OVERAGE.labels(backend).inc(overage_picousd / PICOUSD_PER_USD)
    _OVERAGE_CALLS.labels(backend).inc()


def count_reported_cost(backend: str, reported_picousd: int, charged_picousd: int) -> None:
    _REPORTED_COST.labels(backend).inc(reported_picousd / PICOUSD_PER_USD)
    difference = reported_picousd - charged_picousd
    if difference:
        direction = _DIRECTIONS[difference < 0]
        _DIFFERENCE.labels(backend, direction).inc(abs(difference) / PICOUSD_PER_USD)
        _DIFFERENCES.labels(backend, direction).inc()


def count_dropped_activity(records: int) -> None:
    _DROPPED_ACTIVITY.inc(records)
