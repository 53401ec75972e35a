"""Tests that `decide` is exact, keeps every limit and is fair, and that refused requests change nothing."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.money.holds.admission_oracle import expected_refusals, rate_level
from tests.money.holds.admission_strategies import (
    KEYS,
    NOW_US,
    PROJECTS,
    STRANGE_PROJECT,
    accounts,
    batches,
    random_account,
    random_request,
    requests,
)
from tests.support.proof import Proof
from tollkeeper.core.access import KeyStatus
from tollkeeper.money.caps.rule import CapCounter, CapPeriod
from tollkeeper.money.holds.rule import (
    RATE_UNITS_PER_REQUEST,
    AccountState,
    AdmissionRequest,
    Decision,
    ProjectState,
    Refusal,
    decide,
)
from tollkeeper.money.holds.spend import Spend

EXAMPLES = 60
MINUTE_US = 60_000_000
examples = settings(max_examples=EXAMPLES, derandomize=True, database=None)


def decided(
    state: AccountState,
    batch: list[AdmissionRequest],
    *,
    now_us: int = NOW_US,
) -> tuple[AccountState, list[Decision]]:
    return decide(state, batch, now_us=now_us)


def check_exactness(state: AccountState, batch: list[AdmissionRequest]) -> None:
    _, decisions = decided(state, batch)
    expected = expected_refusals(state, batch, now_us=NOW_US)
    assert [found.refusal for found in decisions] == expected


@examples
@given(accounts(), batches)
def test_is_exact(state: AccountState, batch: list[AdmissionRequest]) -> None:
    check_exactness(state, batch)


def test_is_exact_in_many_more_cases(proof: Proof) -> None:
    many = proof.size(3_000, 500_000)
    for seed in range(many):
        rng = random.Random(seed)
        batch = [random_request(rng) for _ in range(rng.randrange(12))]
        try:
            check_exactness(random_account(rng), batch)
        except AssertionError as exc:
            raise AssertionError(f"seed {seed}") from exc
    proof.count("batches decided and compared with a naive oracle", many)


@examples
@given(accounts(), batches)
def test_never_admits_too_much(state: AccountState, batch: list[AdmissionRequest]) -> None:
    after, decisions = decided(state, batch)
    admitted = [one for one, found in zip(batch, decisions, strict=True) if found.refusal is None]
    total = sum(one.hold_picousd for one in admitted)

    assert after.available_picousd == state.available_picousd - total
    assert after.spend.held_picousd == state.spend.held_picousd + total
    if admitted:
        assert after.available_picousd >= 0
    for project_id, project in after.projects.items():
        mine = [one for one in admitted if one.project_id == project_id]
        before = state.projects[project_id]
        assert project.live_holds == before.live_holds + len(mine)
        level = rate_level(before, NOW_US)
        assert project.rate_units == level - len(mine) * RATE_UNITS_PER_REQUEST >= 0
        if mine:
            assert project.live_holds <= project.concurrency
            assert not project.archived
            assert all(state.keys[one.key_id] is KeyStatus.ACTIVE for one in mine)


@examples
@given(accounts(), batches)
def test_what_is_refused_leaves_no_trace(
    state: AccountState, batch: list[AdmissionRequest]
) -> None:
    after, decisions = decided(state, batch)
    only = [one for one, found in zip(batch, decisions, strict=True) if found.refusal is None]

    again, admitted = decided(state, only)

    assert again == after
    assert all(found.refusal is None for found in admitted)


@examples
@given(accounts(), batches, st.integers(0, 12))
def test_nobody_is_judged_by_who_comes_later(
    state: AccountState, batch: list[AdmissionRequest], cut: int
) -> None:
    _, whole = decided(state, batch)
    _, first = decided(state, batch[:cut])
    assert first == whole[:cut]


@examples
@given(accounts(), batches, requests)
def test_nobody_overtakes_an_equal(
    state: AccountState, batch: list[AdmissionRequest], twin: AdmissionRequest
) -> None:
    """Nothing is released within a batch, so an equal request after a refused request is also refused."""
    _, decisions = decided(state, [twin, *batch, twin])
    if decisions[0].refusal is not None:
        assert decisions[-1].refusal is not None


@examples
@given(accounts(), batches, st.lists(st.integers(0, 12), max_size=4))
def test_a_batch_is_its_parts_at_the_same_instant(
    state: AccountState, batch: list[AdmissionRequest], cuts: list[int]
) -> None:
    whole, decisions = decided(state, batch)
    edges = [0, *sorted(cuts), len(batch)]
    found: list[Decision] = []
    for start, end in itertools.pairwise(edges):
        state, part = decided(state, batch[start:end])
        found += part
    state, _ = decided(state, [])

    assert (state, found) == (whole, decisions)


@examples
@given(st.integers(1, 5), st.lists(st.integers(-30_000_000, 30_000_000), min_size=1, max_size=20))
def test_a_clock_that_trembles_gives_nothing_away(
    requests_per_minute: int, jitters_us: list[int]
) -> None:
    """However the clock moves within a minute, no more requests are admitted than a bucket and its refill."""
    state = rich_account(requests_per_minute=requests_per_minute)
    start = NOW_US
    clock = [start + jitter for jitter in jitters_us]
    admitted = 0
    for now_us in clock:
        state, decisions = decided(state, [request()] * 10, now_us=now_us)
        admitted += sum(found.refusal is None for found in decisions)
    span_us = max(0, max(clock) - start)
    assert admitted <= requests_per_minute + span_us * requests_per_minute // MINUTE_US


def test_a_clock_that_was_set_back_does_not_stop_the_refill() -> None:
    state, _ = decided(rich_account(requests_per_minute=1), [request()])
    hour_us = 60 * MINUTE_US
    state, refused = decided(state, [request()], now_us=NOW_US - hour_us)
    assert refused[0].refusal is Refusal.RATE
    _, admitted = decided(state, [request()], now_us=NOW_US - hour_us + MINUTE_US)
    assert admitted[0].refusal is None


@examples
@given(st.integers(1, 10**6), st.integers(0, RATE_UNITS_PER_REQUEST - 1))
def test_waiting_as_long_as_told_is_enough(requests_per_minute: int, units: int) -> None:
    state = rich_account(requests_per_minute=requests_per_minute, rate_units=units)
    _, refused = decided(state, [request()])
    retry_after_s = refused[0].retry_after_s
    assert retry_after_s is not None
    assert 1 <= retry_after_s <= 120
    _, admitted = decided(state, [request()], now_us=NOW_US + retry_after_s * 1_000_000)
    assert admitted[0].refusal is None


def test_huge_amounts_are_exact() -> None:
    # The largest call of the interface, at 10,000 USD per token.
    hold = 128 * 999_990 * 10**16
    state = replace(rich_account(), available_picousd=3 * hold + hold - 1)
    after, decisions = decided(state, [request(hold)] * 5)
    assert [found.refusal for found in decisions] == [None, None, None, *[Refusal.CREDIT] * 2]
    assert after.available_picousd == hold - 1
    assert decisions[3].needed_picousd == hold


def test_the_arithmetic_is_told() -> None:
    spend = Spend(held_picousd=7, unsettled_picousd=2, settled_picousd=30)
    state = replace(rich_account(), available_picousd=4, spend=spend)
    _, [refused] = decided(state, [request(10)])
    assert refused == Decision(
        Refusal.CREDIT,
        needed_picousd=10,
        available_picousd=4,
        held_picousd=9,
        spent_picousd=30,
        retry_after_s=1,
    )
    # Unsettled holds are not released by themselves: waiting does not help.
    _, [refused] = decided(state, [request(12)])
    assert refused.retry_after_s is None


def test_an_unsettled_hold_is_not_waited_for_under_a_cap() -> None:
    for period in CapPeriod:
        cap = CapCounter(10, 0, held_picousd=8)
        state = replace(
            rich_account(), spend=Spend(unsettled_picousd=8), caps={(None, period): cap}
        )
        _, [refused] = decided(state, [request(5)])
        assert refused.refusal is Refusal.ORGANIZATION_CAP
        assert (refused.held_picousd, refused.retry_after_s) == (8, None)


def test_what_does_not_exist_is_refused_like_a_wrong_key() -> None:
    state = rich_account()
    strange = [
        AdmissionRequest(STRANGE_PROJECT, KEYS[0], 1),
        AdmissionRequest(PROJECTS[0], KEYS[4], 1),
    ]
    _, decisions = decided(state, strange)
    assert decisions == [Decision(Refusal.KEY_NOT_ACTIVE)] * 2


def request(hold: int = 1) -> AdmissionRequest:
    return AdmissionRequest(PROJECTS[0], KEYS[0], hold)


def rich_account(*, requests_per_minute: int = 6000, rate_units: int | None = None) -> AccountState:
    full = requests_per_minute * RATE_UNITS_PER_REQUEST
    spend = Spend()
    project = ProjectState(
        spend=spend,
        archived=False,
        live_holds=0,
        concurrency=1000,
        requests_per_minute=requests_per_minute,
        rate_units=full if rate_units is None else rate_units,
        rate_at_us=NOW_US,
    )
    return AccountState(
        available_picousd=10**30,
        overage_picousd=0,
        spend=spend,
        projects={PROJECTS[0]: project},
        keys={KEYS[0]: KeyStatus.ACTIVE},
    )
