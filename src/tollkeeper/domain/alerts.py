"""Compares current problems with the last reported alerts. Pure functions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

# The used percentages of a cap or credit at which an alert is raised.
FILL_LEVELS = (80, 100)
# An alert is cleared only this many percent below its level. Otherwise every hold near the level
# would raise and clear it.
CLEARED_BELOW = 5
# The level of an alert whose kind has no levels.
RAISED = 100


class AlertKind(StrEnum):
    CAP = "cap"
    CREDIT = "credit"
    NEGATIVE_BALANCE = "negative_balance"
    STOPPED = "stopped"
    UNSETTLED = "unsettled"
    BACKEND_DOWN = "backend_down"
    LEDGER_DIFFERENCE = "ledger_difference"
    USAGE_REPORT = "usage_report"
    POLICY_DRIFT = "policy_drift"
    # Alerts of one gateway, which it keeps in its own process.
    DATABASE_UNREACHABLE = "database_unreachable"
    DATABASE_NOT_WRITABLE = "database_not_writable"
    OLD_DATABASE_SERVER = "old_database_server"
    NOT_READY = "not_ready"


class AlertState(StrEnum):
    RAISED = "raised"
    # The detail has changed and the level has not. This is stored but not reported.
    UPDATED = "updated"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Condition:
    """Describes a possible reason for an alert. `percent` is the reached percentage."""

    key: str
    kind: AlertKind
    subject: Mapping[str, str]
    detail: str
    percent: int = RAISED


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
    """Describes one change of state. It is reported once, except for an update."""

    state: AlertState
    alert: RaisedAlert


def level_of(percent: int, raised: int) -> int:
    """Returns the current level; `raised` is the last reported one (0 for none)."""
    reached = max((level for level in FILL_LEVELS if percent >= level), default=0)
    kept = max(
        (level for level in FILL_LEVELS if level <= raised and percent >= level - CLEARED_BELOW),
        default=0,
    )
    return max(reached, kept)


def changes(
    conditions: Iterable[Condition], raised: Mapping[str, RaisedAlert]
) -> list[AlertChange]:
    """Returns the changes: new alerts, other levels, other details, and alerts that have ended."""
    found: list[AlertChange] = []
    still: set[str] = set()
    for condition in conditions:
        before = raised.get(condition.key)
        level = level_of(condition.percent, 0 if before is None else before.level)
        if level == 0:
            continue
        still.add(condition.key)
        alert = RaisedAlert(
            condition.key, condition.kind, level, condition.subject, condition.detail
        )
        if before is None or before.level != level:
            found.append(AlertChange(AlertState.RAISED, alert))
        elif before.detail != alert.detail:
            found.append(AlertChange(AlertState.UPDATED, alert))
    found += [
        AlertChange(AlertState.CLEARED, alert) for key, alert in raised.items() if key not in still
    ]
    return found
