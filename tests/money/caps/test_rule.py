"""Tests the periods of the calendar, and which amounts caps count in them."""

from datetime import date, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tests.money.holds.admission_oracle import number_of
from tests.money.holds.admission_strategies import KEYS, NOW_US, PROJECTS, TODAY, accounts, batches
from tests.money.holds.test_decide import request, rich_account
from tests.support.tables import each
from tollkeeper.money.caps.rule import (
    DAY_S,
    CapCounter,
    CapPeriod,
    first_day,
    period_end,
    period_number,
)
from tollkeeper.money.holds.rule import (
    AccountState,
    AdmissionRequest,
    Decision,
    ProjectState,
    Refusal,
    decide,
)

DAY, WEEK, MONTH, TOTAL = CapPeriod
EPOCH = date(1970, 1, 1)
examples = settings(max_examples=60, derandomize=True, database=None)


def end_day(period: CapPeriod, number: int) -> int:
    end = period_end(period, number)
    assert end is not None
    assert end % DAY_S == 0
    return end // DAY_S


def day_of(year: int, month: int, day: int) -> int:
    return (date(year, month, day) - EPOCH).days


@pytest.mark.slow
@each("period", (DAY, WEEK, MONTH))
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
        for period in CapPeriod
        if period_number(period, day) != period_number(period, day + 1)
    }
    assert found == ended


def test_all_time_is_one_period_without_an_end() -> None:
    assert {period_number(TOTAL, day) for day in (-1, 0, TODAY)} == {0}
    assert period_end(TOTAL, 0) is None


def capped(amount: int, period: CapPeriod, **counts: int) -> AccountState:
    """Returns an account whose key has a cap."""
    cap = CapCounter(amount, period_number(period, TODAY), **counts)
    return replace(rich_account(), is_capped=True, caps={(KEYS[0], period): cap})


def decided(state: AccountState, *holds: int) -> list[Decision]:
    _, decisions = decide(state, [request(hold) for hold in holds], now_us=NOW_US)
    return decisions


@each("period", CapPeriod)
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
        resets_at=period_end(period, period_number(period, TODAY)),
        # Running calls hold the missing amount, so a retry may succeed.
        retry_after_s=1,
    )
    [never] = decided(state, 7)
    assert (never.refusal, never.retry_after_s) == (Refusal.KEY_CAP, None)


def _running(state: AccountState, held: int) -> ProjectState:
    project = state.projects[PROJECTS[0]]
    return replace(project, spend=replace(project.spend, held_picousd=held))


def test_keys_that_were_rotated_share_a_cap() -> None:
    state = capped(10, DAY, settled_picousd=4)
    new = KEYS[4]
    state = replace(state, keys={**state.keys, new: state.keys[KEYS[0]]}, first_keys={new: KEYS[0]})
    batch = [AdmissionRequest(PROJECTS[0], key, 3) for key in (new, KEYS[0], new)]
    _, decisions = decide(state, batch, now_us=NOW_US)
    assert [found.refusal for found in decisions] == [None, None, Refusal.KEY_CAP]


def test_a_cap_of_one_key_is_none_of_another() -> None:
    state = capped(0, DAY)
    state = replace(state, keys={**state.keys, KEYS[4]: state.keys[KEYS[0]]})
    batch = [AdmissionRequest(PROJECTS[0], key, 1) for key in (KEYS[0], KEYS[4])]
    _, decisions = decide(state, batch, now_us=NOW_US)
    assert [found.refusal for found in decisions] == [Refusal.KEY_CAP, None]


@examples
@given(accounts(), batches)
def test_no_batch_passes_a_cap(state: AccountState, batch: list[AdmissionRequest]) -> None:
    after, decisions = decide(state, batch, now_us=NOW_US)
    assert after.caps.keys() == state.caps.keys()
    for (owner, period), cap in after.caps.items():
        mine = sum(
            one.hold_picousd
            for one, found in zip(batch, decisions, strict=True)
            if found.refusal is None
            and owner in (None, one.project_id, state.first_keys.get(one.key_id, one.key_id))
        )
        before = state.caps[owner, period]
        assert cap == replace(before, held_picousd=before.held_picousd + mine, added_picousd=mine)
        if mine:
            assert cap.left_picousd >= 0


@each("period", CapPeriod)
def test_a_cap_that_covers_a_call_admits_it(period: CapPeriod) -> None:
    """The twin of the test above: nothing is refused that fits exactly."""
    exact, over = decided(capped(10, period, held_picousd=3, settled_picousd=3), 4, 1)
    assert (exact.refusal, over.refusal) == (None, Refusal.KEY_CAP)


def test_numbers_never_go_back() -> None:
    for period in CapPeriod:
        numbers = [period_number(period, day) for day in range(TODAY, TODAY + 800)]
        assert all(one <= later for one, later in pairwise(numbers))
