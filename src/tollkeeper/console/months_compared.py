"""Compares the costs of this month with those of the previous month."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tollkeeper.core.reports import DAY_S, DayRange


@dataclass(frozen=True, slots=True)
class MonthsCompared:
    """Contains the costs of this month so far, of the previous month up to the same day, and of the
    whole previous month."""

    this_picousd: int
    last_so_far_picousd: int
    last_picousd: int


def two_months(now: int) -> DayRange:
    """Returns the days from the first day of the previous month to today (inclusive)."""
    return DayRange(first=_first_day(_first_day(now // DAY_S) - 1), end=now // DAY_S + 1)


def month_start(now: int) -> int:
    return _first_day(now // DAY_S) * DAY_S


def compare_months(by_day: Mapping[int, int], now: int) -> MonthsCompared:
    today = now // DAY_S
    this_first_day = _first_day(today)
    last_first_day = _first_day(this_first_day - 1)
    same_day_last_month = min(last_first_day + today - this_first_day, this_first_day - 1)
    return MonthsCompared(
        this_picousd=sum(
            amount for day, amount in by_day.items() if this_first_day <= day <= today
        ),
        last_so_far_picousd=sum(
            amount for day, amount in by_day.items() if last_first_day <= day <= same_day_last_month
        ),
        last_picousd=sum(
            amount for day, amount in by_day.items() if last_first_day <= day < this_first_day
        ),
    )


def _first_day(day: int) -> int:
    """Returns the first day of the month that contains `day`. Days are counted from 1970-01-01."""
    date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)
    return day - date.day + 1
