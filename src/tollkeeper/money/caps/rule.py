"""Limits what an organization, a project or a key may spend: 5 USD a day, say, and 100 in total.

Each period of a cap counts in a row of its own. A call counts in the period of the UTC day on which it was
admitted, also if it ends later. If the database's clock is set back, calls count in the earlier row again;
nothing has to be repaired.
"""

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from tollkeeper.core.access import KeyId, ProjectId
from tollkeeper.core.months import month_of_day, month_of_number

DAY_S = 86_400
_DAYS_PER_WEEK = 7
# Week 0 began on a Monday; 1970-01-01 was a Thursday.
_DAYS_OF_WEEK_0_BEFORE_1970 = 3


class CapPeriod(StrEnum):
    DAY = "day"
    # From Monday to Sunday, as in ISO 8601.
    WEEK = "week"
    MONTH = "month"
    TOTAL = "total"


CAP_ADJECTIVES = {
    CapPeriod.DAY: "daily",
    CapPeriod.WEEK: "weekly",
    CapPeriod.MONTH: "monthly",
    CapPeriod.TOTAL: "total",
}


@dataclass(frozen=True, slots=True)
class Cap:
    amount_picousd: int
    period: CapPeriod


def period_number(period: CapPeriod, day: int) -> int:
    """Days count from 1970-01-01. The database has the same function, `cap_period_number`."""
    match period:
        case CapPeriod.DAY:
            return day
        case CapPeriod.WEEK:
            return (day + _DAYS_OF_WEEK_0_BEFORE_1970) // _DAYS_PER_WEEK
        case CapPeriod.MONTH:
            return month_of_day(day).number
        case CapPeriod.TOTAL:
            return 0


def first_day(period: CapPeriod, number: int) -> int:
    match period:
        case CapPeriod.DAY:
            return number
        case CapPeriod.WEEK:
            return number * _DAYS_PER_WEEK - _DAYS_OF_WEEK_0_BEFORE_1970
        case CapPeriod.MONTH:
            return month_of_number(number).first_day
        case CapPeriod.TOTAL:
            return 0


def period_end(period: CapPeriod, number: int) -> int | None:
    """When the next period begins; None for `TOTAL`, which has no next one."""
    match period:
        case CapPeriod.TOTAL:
            return None
        case CapPeriod.MONTH:
            return month_of_number(number).next.first_day * DAY_S
    return first_day(period, number + 1) * DAY_S


class CapCounter(msgspec.Struct, frozen=True, gc=False):
    """A cap with what counts for it in the present period. `held_picousd` includes unsettled holds,
    and `settled_picousd` includes overage."""

    amount_picousd: int
    number: int
    held_picousd: int = 0
    settled_picousd: int = 0
    # By this transaction.
    added_picousd: int = 0

    @property
    def left_picousd(self) -> int:
        return self.amount_picousd - self.held_picousd - self.settled_picousd

    def with_hold(self, amount: int) -> "CapCounter":
        return replace(
            self,
            held_picousd=self.held_picousd + amount,
            added_picousd=self.added_picousd + amount,
        )


# A project, a key or, if None, the organization. Keys that were rotated share the caps of the first one.
CapSubject: TypeAlias = ProjectId | KeyId | None
CapKey: TypeAlias = tuple[CapSubject, CapPeriod]


def caps_of(caps: Container[CapKey], project_id: ProjectId, first_key_id: KeyId) -> list[CapKey]:
    subjects: tuple[CapSubject, ...] = (None, project_id, first_key_id)
    possible = [(subject, period) for subject in subjects for period in CapPeriod]
    return [cap_key for cap_key in possible if cap_key in caps]


@dataclass(frozen=True, slots=True)
class CapUse:
    """A key's with `key_id`, a project's with `project_id`, otherwise the organization's."""

    project_id: ProjectId | None
    cap: Cap
    # Includes unsettled holds.
    held_picousd: int
    spent_picousd: int
    # The newest and the first of the rotated keys that share it.
    key_id: KeyId | None = None
    first_key_id: KeyId | None = None
    # When the next period starts (Unix seconds); None for a total cap.
    resets_at: int | None = None

    @property
    def remaining_picousd(self) -> int:
        """Negative after overage, or if the cap was set below what was spent or held."""
        return self.cap.amount_picousd - self.held_picousd - self.spent_picousd
