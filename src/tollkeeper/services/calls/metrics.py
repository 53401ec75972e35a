"""What is counted of calls that are not what they should be: reports of usage that do not fit, cost
beyond the hold, prices that differ from the backend's, activity that was given up. No tenant data.

Amounts are in USD and floats here, and nowhere else: a metric is read, not charged."""

from typing import Literal

from prometheus_client import Counter

from tollkeeper.domain.money import PICOUSD_PER_USD

_ABSURD_USAGE = Counter(
    "tollkeeper_absurd_usage_reports",
    "Reports of usage that cannot be true and were not believed, by backend.",
    ["backend"],
)
_EXCESSIVE_USAGE = Counter(
    "tollkeeper_excessive_usage_reports",
    "Reports of more usage than the declared context holds, by backend: charged, but the "
    "declaration is wrong.",
    ["backend"],
)
_ABOVE_BOUND = Counter(
    "tollkeeper_usage_above_bound_reports",
    "Reports of more usage than the hold reckoned with, by backend and bound.",
    ["backend", "bound"],
)
_OVERAGE = Counter(
    "tollkeeper_overage_usd",
    "What calls cost beyond their holds in USD, by backend.",
    ["backend"],
)
_OVERAGE_CALLS = Counter(
    "tollkeeper_overage_calls",
    "Calls that cost more than their hold, by backend.",
    ["backend"],
)
_REPORTED_COST = Counter(
    "tollkeeper_reported_cost_usd",
    "What backends say that settled calls cost in USD, by backend.",
    ["backend"],
)
_DIFFERENCE = Counter(
    "tollkeeper_cost_difference_usd",
    "By how much that differs from what was charged in USD, by backend and direction.",
    ["backend", "direction"],
)
_DIFFERENCES = Counter(
    "tollkeeper_cost_differences",
    "Settled calls whose backend says another cost than was charged, by backend and direction.",
    ["backend", "direction"],
)
_DROPPED_ACTIVITY = Counter(
    "tollkeeper_dropped_activity_records",
    "Activity records that were given up: the database was away for too long, or refused them.",
)


def count_absurd_usage(backend: str) -> None:
    _ABSURD_USAGE.labels(backend).inc()


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
        direction = "reported_more" if difference > 0 else "charged_more"
        _DIFFERENCE.labels(backend, direction).inc(abs(difference) / PICOUSD_PER_USD)
        _DIFFERENCES.labels(backend, direction).inc()


def count_dropped_activity(records: int) -> None:
    _DROPPED_ACTIVITY.inc(records)
