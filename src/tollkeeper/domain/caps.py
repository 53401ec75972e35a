"""Limits how much an organization, a project or a key may spend in a period.

An organization and a project have one monthly or total cap, which their accounts count
(`domain.admission.Spend`). All other caps are **period caps**: daily and weekly ones of an
organization or a project, and daily, weekly and monthly ones of a key. Each counts the held and
settled amounts of its current period.

A period has a number, which is computed from a UTC day. A hold and its call's cost count in the
period of the hold's **spending day**, however late the call ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from tollkeeper.domain.access import KeyId, ProjectId
from tollkeeper.domain.months import month_of_day, month_of_number

DAY_S = 86_400
_DAY_US = DAY_S * 1_000_000
_DAYS_PER_WEEK = 7
# 1970-01-01 was a Thursday: week 0 began three days before.
_DAYS_BEFORE_FIRST = 3


class CapPeriod(StrEnum):
    DAY = "day"
    # From Monday to Sunday, as in ISO 8601.
    WEEK = "week"
    MONTH = "month"
    TOTAL = "total"


# The periods of the cap that an account counts.
ACCOUNT_PERIODS = (CapPeriod.MONTH, CapPeriod.TOTAL)
# The periods of period caps.
COUNTED_PERIODS = (CapPeriod.DAY, CapPeriod.WEEK, CapPeriod.MONTH)


@dataclass(frozen=True, slots=True)
class Cap:
    amount_picousd: int
    period: CapPeriod


def period_end(period: CapPeriod, number: int) -> int | None:
    """When the next period begins, in seconds since 1970; None if there is no next one."""
    return None if period is CapPeriod.TOTAL else end_day(period, number) * DAY_S


def day_at(now_us: int) -> int:
    """Returns the UTC day, counted from 1970-01-01."""
    return now_us // _DAY_US


def period_number(period: CapPeriod, day: int) -> int:
    """Returns the number of the day's period; later periods have greater numbers."""
    match period:
        case CapPeriod.DAY:
            return day
        case CapPeriod.WEEK:
            return (day + _DAYS_BEFORE_FIRST) // _DAYS_PER_WEEK
        case CapPeriod.MONTH:
            return month_of_day(day).number
        case CapPeriod.TOTAL:
            return 0


def first_day(period: CapPeriod, number: int) -> int:
    """Returns the first day of a period that is not `TOTAL`."""
    match period:
        case CapPeriod.DAY:
            return number
        case CapPeriod.WEEK:
            return number * _DAYS_PER_WEEK - _DAYS_BEFORE_FIRST
        case CapPeriod.MONTH:
            return month_of_number(number).first_day
    raise ValueError("All time has no first day.")


def end_day(period: CapPeriod, number: int) -> int:
    """Returns the first day after the period, when its caps count from zero again."""
    if period is CapPeriod.MONTH:
        return month_of_number(number).next.first_day
    return first_day(period, number + 1)


class PeriodCap(msgspec.Struct, frozen=True, gc=False):
    """Holds a period cap with the held and settled amounts of its current period. `held` includes
    unsettled holds, and `settled` includes overage."""

    amount_picousd: int
    number: int
    held_picousd: int = 0
    settled_picousd: int = 0

    @property
    def counted_picousd(self) -> int:
        return self.held_picousd + self.settled_picousd

    def in_period(self, number: int) -> "PeriodCap":
        """Counts from zero in a later period. An earlier one changes nothing, because going back
        would lose the later period's counts."""
        if number <= self.number:
            return self
        return replace(self, number=number, held_picousd=0, settled_picousd=0)

    def with_hold(self, amount: int) -> "PeriodCap":
        return replace(self, held_picousd=self.held_picousd + amount)

    def with_ended(self, number: int, hold: int, spent: int) -> "PeriodCap":
        """Counts a resolved hold of the period with this number. Ignores holds of earlier
        periods."""
        cap = self.in_period(number)
        if cap.number != number:
            return cap
        return replace(
            cap,
            held_picousd=cap.held_picousd - hold,
            settled_picousd=cap.settled_picousd + spent,
        )


# The owner of a cap: a project, a key or, with None, the organization. Rotated keys share the caps
# of the first one.
CapSubject: TypeAlias = ProjectId | KeyId | None
PeriodCaps: TypeAlias = Mapping[tuple[CapSubject, CapPeriod], PeriodCap]


class EndedHold(msgspec.Struct, frozen=True, gc=False):
    """Describes a resolved hold for period caps."""

    project_id: ProjectId
    # The first in a chain of rotated keys.
    first_key_id: KeyId
    spending_day: int
    hold_picousd: int
    # Includes overage.
    spent_picousd: int


def caps_of(
    caps: PeriodCaps, project_id: ProjectId, first_key_id: KeyId
) -> list[tuple[CapSubject, CapPeriod]]:
    """Returns the caps that a call of this key counts for: the organization's, the project's, the
    key's."""
    subjects: tuple[CapSubject, ...] = (None, project_id, first_key_id)
    possible = [(subject, period) for subject in subjects for period in COUNTED_PERIODS]
    return [of for of in possible if of in caps]


def on_day(caps: PeriodCaps, day: int) -> dict[tuple[CapSubject, CapPeriod], PeriodCap]:
    """Moves all caps to the periods of this day."""
    numbers = {period: period_number(period, day) for period in COUNTED_PERIODS}
    return {of: cap.in_period(numbers[of[1]]) for of, cap in caps.items()}


def with_ended(
    caps: PeriodCaps, ended: Sequence[EndedHold]
) -> dict[tuple[CapSubject, CapPeriod], PeriodCap]:
    counted = dict(caps)
    for one in ended:
        for of in caps_of(counted, one.project_id, one.first_key_id):
            number = period_number(of[1], one.spending_day)
            counted[of] = counted[of].with_ended(number, one.hold_picousd, one.spent_picousd)
    return counted
