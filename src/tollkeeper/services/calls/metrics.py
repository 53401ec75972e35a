"""What is counted of records that are not what they should be: absurd reports of usage, and
activity that was given up. No tenant data."""

from prometheus_client import Counter

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
_DROPPED_ACTIVITY = Counter(
    "tollkeeper_dropped_activity_records",
    "Activity records that were given up: the database was away for too long, or refused them.",
)


def count_absurd_usage(backend: str) -> None:
    _ABSURD_USAGE.labels(backend).inc()


def count_excessive_usage(backend: str) -> None:
    _EXCESSIVE_USAGE.labels(backend).inc()


def count_dropped_activity(records: int) -> None:
    _DROPPED_ACTIVITY.inc(records)
