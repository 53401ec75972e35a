"""Caps: the most that an organization, a project or a key may spend in a period.

An organization and a project have one cap by month or in all, which their accounts count by
themselves (`domain.admission.Spend`). All other caps are **period caps**: of an organization and of
a project by day and by week, of a key by day, by week and by month. Each counts for itself what is
held and settled in its current period.

A period is told by its number, which follows from a day of UTC. A hold counts in the period of its
**spending day**, and so does whatever its call cost, however late it ends.
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
# 1970-01-01 was a Thursday: the week with the number 0 began three days before.
_DAYS_BEFORE_FIRST = 3


class CapPeriod(StrEnum):
    DAY = "day"
    # From Monday to Sunday, as in ISO 8601.
    WEEK = "week"
    MONTH = "month"
    TOTAL = "total"


# The periods of the cap that an account counts by itself.
ACCOUNT_PERIODS = (CapPeriod.MONTH, CapPeriod.TOTAL)
# The periods of period caps.
COUNTED_PERIODS = (CapPeriod.DAY, CapPeriod.WEEK, CapPeriod.MONTH)


@dataclass(frozen=True, slots=True)
class Cap:
    amount_picousd: int
    period: CapPeriod


def day_at(now_us: int) -> int:
    """The day of UTC, counted since 1970-01-01."""
    return now_us // _DAY_US


def period_number(period: CapPeriod, day: int) -> int:
    """The number of the period that the day lies in; a later period has a greater number."""
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
    """The first day of a period that is not `TOTAL`."""
    match period:
        case CapPeriod.DAY:
            return number
        case CapPeriod.WEEK:
            return number * _DAYS_PER_WEEK - _DAYS_BEFORE_FIRST
        case CapPeriod.MONTH:
            return month_of_number(number).first_day
    raise ValueError("All time has no first day.")


def end_day(period: CapPeriod, number: int) -> int:
    """The first day behind the period, at whose beginning its caps count from zero again."""
    if period is CapPeriod.MONTH:
        return month_of_number(number).next.first_day
    return first_day(period, number + 1)


class PeriodCap(msgspec.Struct, frozen=True, gc=False):
    """A period cap with what is held and settled in its current period. `held` includes unsettled
    holds, and `settled` includes overage."""

    amount_picousd: int
    number: int
    held_picousd: int = 0
    settled_picousd: int = 0

    @property
    def counted_picousd(self) -> int:
        return self.held_picousd + self.settled_picousd

    def in_period(self, number: int) -> "PeriodCap":
        """Counts from zero in a later period. An earlier one changes nothing, because a change back
        would lose what the later one has counted."""
        if number <= self.number:
            return self
        return replace(self, number=number, held_picousd=0, settled_picousd=0)

    def with_hold(self, amount: int) -> "PeriodCap":
        return replace(self, held_picousd=self.held_picousd + amount)

    def with_ended(self, number: int, hold: int, spent: int) -> "PeriodCap":
        """A hold of the period with this number was resolved. One of an earlier period is not
        counted any more."""
        cap = self.in_period(number)
        if cap.number != number:
            return cap
        return replace(
            cap,
            held_picousd=cap.held_picousd - hold,
            settled_picousd=cap.settled_picousd + spent,
        )


# Whose cap it is: that of a project, of a key or, with None, of the organization. Keys that were
# rotated share the caps of the first of them.
CapSubject: TypeAlias = ProjectId | KeyId | None
PeriodCaps: TypeAlias = Mapping[tuple[CapSubject, CapPeriod], PeriodCap]


class EndedHold(msgspec.Struct, frozen=True, gc=False):
    """A hold that was resolved, as period caps count it."""

    project_id: ProjectId
    # The first of the keys that were rotated one into another.
    first_key_id: KeyId
    spending_day: int
    hold_picousd: int
    # With overage.
    spent_picousd: int


def caps_of(
    caps: PeriodCaps, project_id: ProjectId, first_key_id: KeyId
) -> list[tuple[CapSubject, CapPeriod]]:
    """The caps that a call of this key counts for: the organization's, the project's, the key's."""
    subjects: tuple[CapSubject, ...] = (None, project_id, first_key_id)
    wanted = [(subject, period) for subject in subjects for period in COUNTED_PERIODS]
    return [of for of in wanted if of in caps]


def on_day(caps: PeriodCaps, day: int) -> dict[tuple[CapSubject, CapPeriod], PeriodCap]:
    """All caps in the periods of this day."""
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
