"""Tests how much overage is expected of a model whose calls have exceeded their holds."""

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.money.overage.rule import Excess, by_model, largest, overage_observed

DAY = 86_400
NOW = 1_800_000_000
_amounts = st.integers(0, 10**15)
_times = st.integers(NOW - 40 * DAY, NOW + DAY)


def exceeded(hold: int, cost: int, at: int = NOW, backend: str = "b", model: str = "m") -> Excess:
    return Excess(model, backend, hold, cost, at)


@st.composite
def _cases(draw: st.DrawFn) -> Excess:
    hold = draw(_amounts)
    cost = hold + draw(st.integers(1, 10**15))
    return exceeded(hold, cost, draw(_times), draw(st.sampled_from("ab")))


@each(
    ("hold", "days", "expected"),
    [
        # A call with a hold of 100 cost 250, so the next one may cost two and a half times its hold.
        (100, 0, 150),
        (1000, 0, 1500),
        (7, 0, 11),
        # Every day without a new case halves this, and the result is rounded up.
        (100, 1, 75),
        (100, 2, 38),
        (100, 3, 19),
        (100, 29, 1),
        (0, 0, 2),
    ],
)
def test_a_call_is_expected_to_exceed_its_hold_as_the_largest_case_did(
    hold: int, days: int, expected: int
) -> None:
    case = exceeded(100, 250, at=NOW - days * DAY)
    assert overage_observed([case], hold, 10**9, NOW) == expected
    # Not yet halved again one second before the end of the next day.
    assert overage_observed([case], hold, 10**9, NOW + DAY - 1) == expected


def test_the_largest_of_all_cases_counts() -> None:
    cases = [exceeded(100, 110), exceeded(10, 40), exceeded(1000, 9000, NOW - 3 * DAY)]
    assert overage_observed(cases, 100, 10**9, NOW) == 300
    assert overage_observed(cases, 100, 10**9, NOW + DAY) == 150
    assert overage_observed([], 100, 10**9, NOW) == 0


def test_a_small_hold_that_was_exceeded_does_not_block_large_calls() -> None:
    """One search cost a thousand times the hold of "Hello". A call with a long prompt cannot cost a
    thousand times its hold, because its model's limits do not allow it."""
    case = exceeded(10, 10_010)
    assert overage_observed([case], 10, 50_000, NOW) == 10_000
    assert overage_observed([case], 40_000, 50_000, NOW) == 10_000
    assert overage_observed([case], 5_000, 50_000, NOW) == 45_000
    # The case itself exceeded the limits of the model, so the limits are wrong.
    assert overage_observed([case], 10, 20, NOW) == 10_000


def test_a_model_without_prices_for_tokens_is_not_overlooked() -> None:
    """Every hold is zero, but searches cost money."""
    case = exceeded(0, 140_000)
    assert overage_observed([case], 0, 200_000, NOW) == 140_000
    assert overage_observed([case], 0, 200_000, NOW + DAY) == 70_000
    assert overage_observed([case], 50_000, 200_000, NOW) == 150_000


def test_a_clock_that_was_ahead_does_not_matter() -> None:
    assert overage_observed([exceeded(100, 250, at=NOW + 5 * DAY)], 100, 10**9, NOW) == 150


@given(st.lists(_cases(), max_size=8), _amounts, _amounts)
def test_the_expectation_is_exact(cases: list[Excess], hold: int, more: int) -> None:
    """Computes it with fractions. If no limit of the model applies, leaving out smaller cases changes
    nothing, now or later."""
    kept = by_model(cases).get("m", ())
    assert set(kept) <= set(cases)
    for later in (NOW, NOW + DAY, NOW + 11 * DAY):
        expected = 0
        for case in cases:
            over = case.cost_picousd - case.hold_picousd
            days = max(later - case.at, 0) // DAY
            ratio = Fraction(over, max(case.hold_picousd, 1) * 2**days)
            amount = math.ceil(ratio * max(hold, 1))
            expected = max(expected, min(amount, max(more, over)))
        assert overage_observed(cases, hold, hold + more, later) == expected
        without_limit = overage_observed(cases, hold, 10**60, later)
        assert overage_observed(kept, hold, 10**60, later) == without_limit


@given(st.lists(_cases(), min_size=1, max_size=8))
def test_what_is_left_out_is_never_larger(cases: list[Excess]) -> None:
    kept = by_model(cases)["m"]
    for case in cases:
        larger = [one for one in kept if one.backend == case.backend and one.at >= case.at]
        assert any(not case.exceeds(one) for one in larger)


@given(st.lists(_cases(), min_size=1, max_size=8))
def test_the_largest_of_each_backend(cases: list[Excess]) -> None:
    found = largest(cases)
    assert list(found) == sorted({(case.model, case.backend) for case in cases})
    for case in cases:
        assert not case.exceeds(found[case.model, case.backend])


def test_cases_are_compared_exactly() -> None:
    """A quotient of floats would be the same for both."""
    smaller, larger = exceeded(10**30, 2 * 10**30), exceeded(10**30, 2 * 10**30 + 1)
    assert larger.exceeds(smaller)
    assert not smaller.exceeds(larger)
    assert not smaller.exceeds(smaller)
