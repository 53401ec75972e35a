"""Tests that a cost report has one bucket for each UTC day of its range."""

from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.reports import DAY_S, TIME_MAX, CostRow, DayRange, buckets_of, days_of

_times = st.integers(min_value=0, max_value=TIME_MAX)


@given(_times, _times)
def test_days_of_a_range(start: int, end: int) -> None:
    days = days_of(start, end)
    if end <= start:
        assert days.first == days.end
    else:
        # The first day contains the first second, and the last day contains the last second.
        assert days.first * DAY_S <= start < (days.first + 1) * DAY_S
        assert (days.end - 1) * DAY_S <= end - 1 < days.end * DAY_S


@given(_times, st.integers(min_value=1, max_value=400 * DAY_S))
def test_adjacent_ranges_at_midnight_share_no_day(start: int, length: int) -> None:
    middle = (start + length) // DAY_S * DAY_S
    if start < middle < start + length:
        left, right = days_of(start, middle), days_of(middle, start + length)
        assert left.end == right.first
        assert (left.first, right.end) == (
            days_of(start, start + length).first,
            days_of(start, start + length).end,
        )


def _row(day: int, amount: int) -> CostRow:
    return CostRow(day, amount, None, None, None)


@given(
    st.integers(min_value=0, max_value=10**6),
    st.integers(min_value=0, max_value=180),
    st.lists(st.tuples(st.integers(min_value=0, max_value=179), st.integers(min_value=0))),
)
def test_every_day_is_one_bucket_and_nothing_is_lost(
    first: int, length: int, spent: list[tuple[int, int]]
) -> None:
    rows = [_row(first + day, amount) for day, amount in spent if day < length]
    buckets = buckets_of(DayRange(first, first + length), rows)
    assert [bucket.start_time for bucket in buckets] == [
        day * DAY_S for day in range(first, first + length)
    ]
    assert all(bucket.end_time - bucket.start_time == DAY_S for bucket in buckets)
    assert sorted(
        (row.day, row.amount_picousd) for bucket in buckets for row in bucket.rows
    ) == sorted((row.day, row.amount_picousd) for row in rows)
