"""Tests the periods of the calendar, and which amounts caps count in them."""

import random
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.domain.admission_oracle import number_of
from tests.domain.admission_strategies import (
    KEYS,
    MONTHS,
    NOW_US,
    PROJECTS,
    TODAY,
    accounts,
    batches,
)
from tests.domain.test_decide import request, rich_account
from tests.support.tables import each
from tollkeeper.domain.admission import (
    AccountState,
    AdmissionRequest,
    Decision,
    ProjectState,
    Refusal,
    decide,
)
from tollkeeper.domain.caps import (
    COUNTED_PERIODS,
    CapPeriod,
    PeriodCap,
    ResolvedHold,
    day_at,
    end_day,
    first_day,
    period_number,
)

DAY, WEEK, MONTH = COUNTED_PERIODS
DAY_US = 86_400_000_000
EPOCH = date(1970, 1, 1)
examples = settings(max_examples=60, derandomize=True, database=None)


def day_of(year: int, month: int, day: int) -> int:
    return (date(year, month, day) - EPOCH).days


@pytest.mark.slow
@each("period", COUNTED_PERIODS)
def test_periods_are_those_of_the_calendar(period: CapPeriod) -> None:
    """Checks every day of a century, with its leap years and its years of 53 weeks."""
    for day in range(day_of(1999, 12, 1), day_of(2100, 4, 1)):
        number = period_number(period, day)
        assert number == number_of(period, EPOCH + timedelta(days=day)), day
        assert first_day(period, number) <= day < end_day(period, number)
        assert period_number(period, first_day(period, number)) == number
        assert period_number(period, end_day(period, number)) > number
        assert period_number(period, end_day(period, number) - 1) == number


@each(
    ("last", "ended"),
    [
        # A Sunday in the middle of a month, and a month that ends on a Wednesday.
        (date(2026, 11, 15), {DAY, WEEK}),
        (date(2027, 3, 31), {DAY, MONTH}),
        # February of a leap year, of 2000 (a leap year) and of 2100 (no leap year).
        (date(2028, 2, 28), {DAY}),
        (date(2028, 2, 29), {DAY, MONTH}),
        (date(2000, 2, 28), {DAY}),
        (date(2100, 2, 28), {DAY, WEEK, MONTH}),
        # The end of a year of 53 weeks, whose last week ends in the next year.
        (date(2026, 12, 31), {DAY, MONTH}),
        (date(2027, 1, 3), {DAY, WEEK}),
        # A month that ends on a Sunday.
        (date(2026, 5, 31), {DAY, WEEK, MONTH}),
        (date(2026, 11, 17), {DAY}),
    ],
)
def test_what_ends_with_a_day(last: date, ended: set[CapPeriod]) -> None:
    day = (last - EPOCH).days
    found = {
        period
        for period in COUNTED_PERIODS
        if period_number(period, day) != period_number(period, day + 1)
    }
    assert found == ended


def test_a_day_ends_at_midnight_of_utc() -> None:
    midnight = int(datetime(2028, 3, 1, tzinfo=UTC).timestamp()) * 10**6
    assert (day_at(midnight - 1), day_at(midnight)) == (day_of(2028, 2, 29), day_of(2028, 3, 1))


def test_all_time_is_one_period_without_a_beginning() -> None:
    assert {period_number(CapPeriod.TOTAL, day) for day in (-1, 0, TODAY)} == {0}
    with pytest.raises(ValueError):
        first_day(CapPeriod.TOTAL, 0)


def capped(amount: int, period: CapPeriod, **counts: int) -> AccountState:
    """Returns an account whose key has a cap."""
    cap = PeriodCap(amount, period_number(period, TODAY), **counts)
    return replace(rich_account(), spending_day=TODAY, period_caps={(KEYS[0], period): cap})


def decided(state: AccountState, *holds: int, now_us: int = NOW_US) -> list[Decision]:
    _, decisions = decide(state, [request(hold) for hold in holds], now_us=now_us, month=MONTHS[1])
    return decisions


@each("period", COUNTED_PERIODS)
def test_a_refusal_says_which_cap_and_until_when(period: CapPeriod) -> None:
    state = capped(10, period, held_picousd=3, settled_picousd=4)
    state = replace(state, projects={PROJECTS[0]: _running(state, 3)})
    admitted, refused = decided(state, 2, 2)
    assert admitted.refusal is None
    assert refused == Decision(
        Refusal.KEY_CAP,
        needed_picousd=2,
        available_picousd=1,
        held_picousd=5,
        spent_picousd=4,
        limit=10,
        period=period,
        resets_at=end_day(period, period_number(period, TODAY)) * 86_400,
        # Running calls hold the missing amount, so a retry may succeed.
        retry_after_s=1,
    )
    [never] = decided(state, 7)
    assert (never.refusal, never.retry_after_s) == (Refusal.KEY_CAP, None)


def _running(state: AccountState, held: int) -> ProjectState:
    project = state.projects[PROJECTS[0]]
    return replace(project, spend=replace(project.spend, held_picousd=held))


@each("period", COUNTED_PERIODS)
def test_the_next_period_counts_from_zero(period: CapPeriod) -> None:
    state = capped(10, period, held_picousd=3, settled_picousd=7)
    end_us = end_day(period, period_number(period, TODAY)) * DAY_US
    [refused] = decided(state, 1, now_us=end_us - 1)
    assert refused.refusal is Refusal.KEY_CAP
    ten, one_more = decided(state, 10, 1, now_us=end_us)
    assert (ten.refusal, one_more.refusal) == (None, Refusal.KEY_CAP)
    assert one_more.resets_at == end_day(period, period_number(period, end_us // DAY_US)) * 86_400


@each("period", COUNTED_PERIODS)
def test_a_clock_that_is_set_back_reopens_no_period(period: CapPeriod) -> None:
    state = capped(10, period, settled_picousd=10)
    for days in (1, 8, 400):
        [refused] = decided(state, 1, now_us=NOW_US - days * DAY_US)
        assert refused.refusal is Refusal.KEY_CAP
        after, _ = decide(state, (), now_us=NOW_US - days * DAY_US, month=MONTHS[1])
        assert after.spending_day == TODAY


@each("period", COUNTED_PERIODS)
def test_a_call_over_the_end_of_a_period_counts_where_it_began(period: CapPeriod) -> None:
    state, [admitted] = decide(capped(10, period), [request(10)], now_us=NOW_US, month=MONTHS[1])
    assert admitted.refusal is None
    end_us = end_day(period, period_number(period, TODAY)) * DAY_US
    ended = ResolvedHold(PROJECTS[0], KEYS[0], TODAY, hold_picousd=10, spent_picousd=9)
    # The call ends before the first call of the new period, or after it.
    [before] = decided(state.with_resolved(ended), 10, now_us=end_us)
    later, [after] = decide(state, [request(4)], now_us=end_us, month=MONTHS[1])
    assert before.refusal is after.refusal is None
    [cap] = later.with_resolved(ended).period_caps.values()
    assert (cap.held_picousd, cap.settled_picousd) == (4, 0)


def test_keys_that_were_rotated_share_a_cap() -> None:
    state = capped(10, DAY, settled_picousd=4)
    new = KEYS[4]
    state = replace(state, keys={**state.keys, new: state.keys[KEYS[0]]}, first_keys={new: KEYS[0]})
    batch = [AdmissionRequest(PROJECTS[0], key, 3) for key in (new, KEYS[0], new)]
    _, decisions = decide(state, batch, now_us=NOW_US, month=MONTHS[1])
    assert [found.refusal for found in decisions] == [None, None, Refusal.KEY_CAP]


def test_a_cap_of_one_key_is_none_of_another() -> None:
    state = capped(0, DAY)
    state = replace(state, keys={**state.keys, KEYS[4]: state.keys[KEYS[0]]})
    batch = [AdmissionRequest(PROJECTS[0], key, 1) for key in (KEYS[0], KEYS[4])]
    _, decisions = decide(state, batch, now_us=NOW_US, month=MONTHS[1])
    assert [found.refusal for found in decisions] == [Refusal.KEY_CAP, None]


@examples
@given(accounts(), batches, st.integers(-3, 40))
def test_no_batch_passes_a_period_cap(
    state: AccountState, batch: list[AdmissionRequest], days: int
) -> None:
    now_us = NOW_US + days * DAY_US
    after, decisions = decide(state, batch, now_us=now_us, month=MONTHS[1])
    if state.spending_day is None:
        assert after.period_caps == {}
        return
    day = max(state.spending_day, day_at(now_us))
    assert after.spending_day == day
    for (owner, period), cap in after.period_caps.items():
        mine = sum(
            one.hold_picousd
            for one, found in zip(batch, decisions, strict=True)
            if found.refusal is None
            and owner in (None, one.project_id, state.first_keys.get(one.key_id, one.key_id))
        )
        before = state.period_caps[owner, period].in_period(period_number(period, day))
        assert cap.number == period_number(period, day)
        assert cap.counted_picousd == before.counted_picousd + mine
        if mine:
            assert cap.counted_picousd <= cap.amount_picousd


@examples
@given(
    st.lists(st.tuples(st.integers(TODAY - 40, TODAY + 3), st.integers(0, 9), st.integers(0, 12))),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_holds_end_does_not_matter(
    holds: list[tuple[int, int, int]], rng: random.Random
) -> None:
    """Each hold counts in its own period. A cap ignores holds of periods before the latest."""
    days = [day for day, _, _ in holds] or [TODAY]
    for period in COUNTED_PERIODS:
        number = period_number(period, max(days))
        mine = [(hold, cost) for day, hold, cost in holds if period_number(period, day) == number]
        held = sum(hold for hold, _ in mine)
        cap = PeriodCap(0, number, held)
        for _ in range(3):
            rng.shuffle(holds)
            after = cap
            for day, hold, cost in holds:
                after = after.with_resolved(period_number(period, day), hold, cost)
            assert after == replace(
                cap, held_picousd=0, settled_picousd=sum(cost for _, cost in mine)
            )


def test_numbers_never_go_back() -> None:
    for period in COUNTED_PERIODS:
        numbers = [period_number(period, day) for day in range(TODAY, TODAY + 800)]
        assert all(one <= later for one, later in pairwise(numbers))
