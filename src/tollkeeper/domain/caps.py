"""Limits how much an organization, a project or a key may spend in a period.

An organization or a project may have one monthly or total cap, which is compared with the counters
in `domain.spend.Spend`. All other caps are **period caps**: the daily and weekly caps of
organizations and projects, and the daily, weekly and monthly caps of keys. Each period cap has
counters of its own, for the amounts held and settled in its current period.

A hold is the highest possible cost of a call, reserved before the call; to settle is to replace the
hold by the actual cost. The hold and the cost of a call count in the period of the hold's
**spending day** (the UTC day of its admission), even if the call ends in a later period. Periods
are numbered, and the number follows from the UTC day.
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
# Week 0 began on a Monday, three days before 1970-01-01, which was a Thursday.
_DAYS_OF_WEEK_0_BEFORE_1970 = 3


class CapPeriod(StrEnum):
    DAY = "day"
    # From Monday to Sunday, as in ISO 8601.
    WEEK = "week"
    MONTH = "month"
    TOTAL = "total"


# The possible periods of the cap that is compared with the counters in `Spend`.
ACCOUNT_PERIODS = (CapPeriod.MONTH, CapPeriod.TOTAL)
# The possible periods of period caps.
COUNTED_PERIODS = (CapPeriod.DAY, CapPeriod.WEEK, CapPeriod.MONTH)


@dataclass(frozen=True, slots=True)
class Cap:
    amount_picousd: int
    period: CapPeriod


def period_end(period: CapPeriod, number: int) -> int | None:
    """Returns the time at which the next period begins, in seconds since 1970; None for `TOTAL`,
    which has no next period."""
    return None if period is CapPeriod.TOTAL else end_day(period, number) * DAY_S


def day_at(now_us: int) -> int:
    """Returns the UTC day that contains this time, counted from 1970-01-01."""
    return now_us // _DAY_US


def period_number(period: CapPeriod, day: int) -> int:
    """Returns the number of the period that contains the day. Later periods have greater
    numbers."""
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
    """Returns the first day of a period that is not `TOTAL`."""
    match period:
        case CapPeriod.DAY:
            return number
        case CapPeriod.WEEK:
            return number * _DAYS_PER_WEEK - _DAYS_OF_WEEK_0_BEFORE_1970
        case CapPeriod.MONTH:
            return month_of_number(number).first_day
    raise ValueError("The period TOTAL has no first day.")


def end_day(period: CapPeriod, number: int) -> int:
    """Returns the first day after the period. On that day the period's caps start again from
    zero."""
    if period is CapPeriod.MONTH:
        return month_of_number(number).next.first_day
    return first_day(period, number + 1)


class PeriodCap(msgspec.Struct, frozen=True, gc=False):
    """Contains a period cap and the amounts held and settled in its current period. `held_picousd`
    includes unsettled holds (calls with unknown cost), and `settled_picousd` includes overage (cost
    beyond the hold)."""

    amount_picousd: int
    # The number of the current period.
    number: int
    held_picousd: int = 0
    settled_picousd: int = 0

    @property
    def counted_picousd(self) -> int:
        return self.held_picousd + self.settled_picousd

    def in_period(self, number: int) -> "PeriodCap":
        """Returns the cap in the period with this number. If that period is later than the current
        period, the cap counts from zero. If it is earlier, returns the cap unchanged, because going
        back would lose the counts of the current period."""
        if number <= self.number:
            return self
        return replace(self, number=number, held_picousd=0, settled_picousd=0)

    def with_hold(self, amount: int) -> "PeriodCap":
        return replace(self, held_picousd=self.held_picousd + amount)

    def with_resolved(self, number: int, hold: int, spent: int) -> "PeriodCap":
        """Counts a resolved hold that belongs to the period with this number. Ignores the hold if
        that period is earlier than the cap's current period."""
        cap = self.in_period(number)
        if cap.number != number:
            return cap
        return replace(
            cap,
            held_picousd=cap.held_picousd - hold,
            settled_picousd=cap.settled_picousd + spent,
        )


# The owner of a cap: a project, a key or, if None, the organization. A rotated key shares the caps
# of the first key in its chain of rotations.
CapSubject: TypeAlias = ProjectId | KeyId | None
PeriodCaps: TypeAlias = Mapping[tuple[CapSubject, CapPeriod], PeriodCap]


class ResolvedHold(msgspec.Struct, frozen=True, gc=False):
    """Contains the data of a resolved hold that period caps count."""

    project_id: ProjectId
    # The first key in the chain of rotations to which the call's key belongs.
    first_key_id: KeyId
    spending_day: int
    hold_picousd: int
    # Includes overage.
    spent_picousd: int


def caps_of(
    caps: PeriodCaps, project_id: ProjectId, first_key_id: KeyId
) -> list[tuple[CapSubject, CapPeriod]]:
    """Returns the dictionary keys of all caps that count a call with this API key: the caps of the
    organization, of the project and of the API key."""
    subjects: tuple[CapSubject, ...] = (None, project_id, first_key_id)
    possible = [(subject, period) for subject in subjects for period in COUNTED_PERIODS]
    return [cap_key for cap_key in possible if cap_key in caps]


def on_day(caps: PeriodCaps, day: int) -> dict[tuple[CapSubject, CapPeriod], PeriodCap]:
    """Returns all caps in the periods that contain this day (see `PeriodCap.in_period`)."""
    numbers = {period: period_number(period, day) for period in COUNTED_PERIODS}
    return {cap_key: cap.in_period(numbers[cap_key[1]]) for cap_key, cap in caps.items()}


def with_resolved(
    caps: PeriodCaps, resolved: Sequence[ResolvedHold]
) -> dict[tuple[CapSubject, CapPeriod], PeriodCap]:
    """Returns the caps after the resolved holds are counted in all caps to which they belong."""
    counted = dict(caps)
    for hold in resolved:
        for cap_key in caps_of(counted, hold.project_id, hold.first_key_id):
            number = period_number(cap_key[1], hold.spending_day)
            counted[cap_key] = counted[cap_key].with_resolved(
                number, hold.hold_picousd, hold.spent_picousd
            )
    return counted
