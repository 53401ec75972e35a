"""Compares current conditions with the alerts that were reported before, and finds the alerts that
have changed. Contains only pure functions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

# The fills, in percent, at which an alert is raised. A fill is the used share of a cap or credit.
FILL_LEVELS = (80, 100)
# An alert is cleared when the fill is more than this many percentage points below the alert's
# level. Without this margin, holds near the level would raise and clear the alert repeatedly.
CLEARING_MARGIN = 5
# The level of every alert that is not about a fill.
ONLY_LEVEL = 100


class AlertKind(StrEnum):
    CAP = "cap"
    CREDIT = "credit"
    NEGATIVE_BALANCE = "negative_balance"
    STOPPED = "stopped"
    UNSETTLED = "unsettled"
    BACKEND_DOWN = "backend_down"
    LEDGER_DIFFERENCE = "ledger_difference"
    USAGE_REPORT = "usage_report"
    EXCEEDED_HOLD = "exceeded_hold"
    POLICY_DRIFT = "policy_drift"
    # The following alerts concern a single gateway. They are stored in the memory of its
    # supervisor, because they must also be reported while the database is down.
    DATABASE_UNREACHABLE = "database_unreachable"
    DATABASE_REFUSES_CONNECTIONS = "database_refuses_connections"
    DATABASE_NOT_WRITABLE = "database_not_writable"
    OLD_DATABASE_SERVER = "old_database_server"
    NOT_READY = "not_ready"


class AlertState(StrEnum):
    # The alert is new, or its level has risen or fallen.
    RAISED = "raised"
    # The detail has changed, but not the level. The change is stored but not reported.
    UPDATED = "updated"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Condition:
    """Describes a current condition that may cause the alert with the same `key`. `percent` is the
    current fill, or `ONLY_LEVEL` if the condition is not about a fill."""

    key: str
    kind: AlertKind
    subject: Mapping[str, str]
    detail: str
    percent: int = ONLY_LEVEL


@dataclass(frozen=True, slots=True)
class RaisedAlert:
    """Describes an alert that was reported and not cleared yet."""

    key: str
    kind: AlertKind
    level: int
    subject: Mapping[str, str]
    detail: str


@dataclass(frozen=True, slots=True)
class AlertChange:
    """Describes a change of an alert's state. Every change except an update is reported once."""

    state: AlertState
    alert: RaisedAlert


def level_of(percent: int, reported_level: int) -> int:
    """Returns the alert's current level (0 for no alert). `reported_level` is the level that was
    reported last. It still applies if the fill is within `CLEARING_MARGIN` below it."""
    reached = max((level for level in FILL_LEVELS if percent >= level), default=0)
    not_cleared = max(
        (
            level
            for level in FILL_LEVELS
            if level <= reported_level and percent >= level - CLEARING_MARGIN
        ),
        default=0,
    )
    return max(reached, not_cleared)


def changes(
    conditions: Iterable[Condition], raised: Mapping[str, RaisedAlert]
) -> list[AlertChange]:
    """Returns the changes since the last report: new alerts, changed levels or details, and alerts
    whose conditions have ended."""
    found: list[AlertChange] = []
    raised_keys: set[str] = set()
    for condition in conditions:
        before = raised.get(condition.key)
        level = level_of(condition.percent, 0 if before is None else before.level)
        if level == 0:
            continue
        raised_keys.add(condition.key)
        alert = RaisedAlert(
            condition.key, condition.kind, level, condition.subject, condition.detail
        )
        if before is None or before.level != level:
            found.append(AlertChange(AlertState.RAISED, alert))
        elif before.detail != alert.detail:
            found.append(AlertChange(AlertState.UPDATED, alert))
    found += [
        AlertChange(AlertState.CLEARED, alert)
        for key, alert in raised.items()
        if key not in raised_keys
    ]
    return found
