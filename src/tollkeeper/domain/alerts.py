"""Alerts: what is wrong now, and what has changed since it was told last. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

# Percent of a cap or of a credit at which an alert is raised.
FILL_LEVELS = (80, 100)
# An alert is cleared only so many percent below its level. Otherwise every hold near the level would
# raise and clear it.
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
    # Of one gateway, which keeps them in its own process.
    DATABASE_UNREACHABLE = "database_unreachable"
    DATABASE_NOT_WRITABLE = "database_not_writable"
    OLD_DATABASE_SERVER = "old_database_server"
    NOT_READY = "not_ready"


class AlertState(StrEnum):
    RAISED = "raised"
    # The level is the same and the detail is not. This is written and not told.
    UPDATED = "updated"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is, or may be, worth an alert. `percent` is how far it has come."""

    key: str
    kind: AlertKind
    subject: Mapping[str, str]
    detail: str
    percent: int = RAISED


@dataclass(frozen=True, slots=True)
class RaisedAlert:
    """An alert that was told and not cleared yet."""

    key: str
    kind: AlertKind
    level: int
    subject: Mapping[str, str]
    detail: str


@dataclass(frozen=True, slots=True)
class AlertChange:
    """One change of state. It is told once, except for an update."""

    state: AlertState
    alert: RaisedAlert


def level_of(percent: int, raised: int) -> int:
    """The level that holds now, where `raised` was told last (0: none)."""
    reached = max((level for level in FILL_LEVELS if percent >= level), default=0)
    kept = max(
        (level for level in FILL_LEVELS if level <= raised and percent >= level - CLEARED_BELOW),
        default=0,
    )
    return max(reached, kept)


def changes(
    conditions: Iterable[Condition], raised: Mapping[str, RaisedAlert]
) -> list[AlertChange]:
    """What has changed: new alerts, other levels, other details, and alerts that are over."""
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
