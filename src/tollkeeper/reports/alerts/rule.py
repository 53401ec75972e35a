"""Compares current conditions with the alerts reported before, and finds what has changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

# In percent of a cap or credit.
FILL_LEVELS = (80, 100)
# An alert clears only this many points below its level. Otherwise holds near the level would raise and clear
# it over and over.
CLEARING_MARGIN = 5
# For alerts that aren't about a fill.
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
    # These concern a single gateway. Its supervisor has them in memory, because they must be reported while
    # the database is down.
    DATABASE_UNREACHABLE = "database_unreachable"
    DATABASE_REFUSES_CONNECTIONS = "database_refuses_connections"
    DATABASE_NOT_WRITABLE = "database_not_writable"
    OLD_DATABASE_SERVER = "old_database_server"
    NOT_READY = "not_ready"


class AlertState(StrEnum):
    # New, or another level.
    RAISED = "raised"
    # Another detail at the same level, which is stored but not reported.
    UPDATED = "updated"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Condition:
    """May cause the alert with its `key`. `percent` is the fill or `ONLY_LEVEL`."""

    key: str
    kind: AlertKind
    subject: Mapping[str, str]
    detail: str
    percent: int = ONLY_LEVEL


@dataclass(frozen=True, slots=True)
class RaisedAlert:
    """Reported and not cleared yet."""

    key: str
    kind: AlertKind
    level: int
    subject: Mapping[str, str]
    detail: str


@dataclass(frozen=True, slots=True)
class AlertChange:
    """Every change but an update is reported once."""

    state: AlertState
    alert: RaisedAlert


def level_of(percent: int, reported_level: int) -> int:
    """0 for no alert. `reported_level` still applies within `CLEARING_MARGIN` below it."""
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


# In the order of display.
_SUBJECT_PARTS = ("organization_id", "project_id", "key_id", "period", "backend", "gateway")


@dataclass(frozen=True, slots=True)
class StandingAlert:
    """Raised and not cleared yet."""

    kind: AlertKind
    level: int
    subject: Mapping[str, str]
    detail: str
    raised_at: int

    def about(self, names: Mapping[str, str]) -> str:
        """As text: an organization, then its project, and so on. `names` maps ids to names."""
        parts = sorted(self.subject.items(), key=lambda part: _SUBJECT_PARTS.index(part[0]))
        return ", ".join(names.get(value, value) for _, value in parts)
