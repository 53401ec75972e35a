"""Tests the overage bound in `decide`: when it stops an organization, and which calls it refuses."""

from msgspec.structs import replace

from tests.money.holds.admission_strategies import KEYS, NOW_US, PROJECTS
from tests.support.tables import each
from tollkeeper.core.access import KeyStatus
from tollkeeper.money.holds.rule import (
    RATE_UNITS_PER_REQUEST,
    AccountState,
    AdmissionRequest,
    ProjectState,
    Refusal,
    decide,
)
from tollkeeper.money.holds.spend import Fold, FoldKind, Spend

PROJECT, KEY = PROJECTS[0], KEYS[0]
ACCOUNT = AccountState(
    available_picousd=100,
    overage_picousd=0,
    spend=Spend(),
    projects={
        PROJECT: ProjectState(
            spend=Spend(),
            archived=False,
            live_holds=0,
            concurrency=10,
            requests_per_minute=100,
            rate_units=100 * RATE_UNITS_PER_REQUEST,
            rate_at_us=NOW_US,
        )
    },
    keys={KEY: KeyStatus.ACTIVE},
    overage_bound_picousd=7,
)


def refusal_of(state: AccountState, hold: int = 0) -> tuple[AccountState, Refusal | None]:
    request = AdmissionRequest(PROJECT, KEY, hold)
    after, [decision] = decide(state, [request], now_us=NOW_US)
    return after, decision.refusal


@each(
    ("available", "held", "unsettled", "refusal"),
    [
        (-7, 0, 0, Refusal.CREDIT),
        (-8, 0, 0, Refusal.OVERAGE),
        # Held and unsettled amounts are not spent, so they count for the balance.
        (-8, 1, 0, Refusal.CREDIT),
        (-8, 0, 1, Refusal.CREDIT),
        (0, 0, 0, None),
    ],
)
def test_the_balance_decides(
    available: int, held: int, unsettled: int, refusal: Refusal | None
) -> None:
    spend = Spend(held_picousd=held, unsettled_picousd=unsettled)
    state = replace(ACCOUNT, available_picousd=available, overage_picousd=9, spend=spend)
    after, found = refusal_of(state)
    assert found is refusal
    assert after.stopped == (refusal is Refusal.OVERAGE)


def test_a_stop_outlasts_its_cause() -> None:
    stopped, _ = refusal_of(replace(ACCOUNT, available_picousd=-8, overage_picousd=8))
    rich = replace(stopped, available_picousd=10**6)
    assert refusal_of(rich) == (rich, Refusal.OVERAGE)
    assert refusal_of(replace(rich, stopped=False))[1] is None


def test_without_a_bound_only_credit_decides() -> None:
    state = replace(
        ACCOUNT, available_picousd=-(10**9), overage_picousd=10**9, overage_bound_picousd=None
    )
    assert refusal_of(state)[1] is Refusal.CREDIT


def test_a_stop_is_seen_without_any_request() -> None:
    """A grant decides on no request, but updates the account first."""
    state = replace(ACCOUNT, available_picousd=-8, overage_picousd=8)
    after, _ = decide(state, [], now_us=NOW_US)
    assert after.stopped


def test_a_key_that_is_not_active_learns_nothing() -> None:
    state = replace(ACCOUNT, stopped=True, keys={KEY: KeyStatus.REVOKED})
    assert refusal_of(state)[1] is Refusal.KEY_NOT_ACTIVE


def risky(hold: int, overage_max: int) -> AdmissionRequest:
    return AdmissionRequest(PROJECT, KEY, hold, overage_max)


def refusals_of(state: AccountState, *requests: AdmissionRequest) -> list[Refusal | None]:
    _, decisions = decide(state, requests, now_us=NOW_US)
    return [decision.refusal for decision in decisions]


def test_calls_in_flight_may_not_end_below_the_bound_together() -> None:
    """The credit that the holds leave of 100, plus the bound of 7, must cover the overage in flight."""
    refused = Refusal.OVERAGE_IN_FLIGHT
    assert refusals_of(ACCOUNT, risky(10, 97), risky(0, 1)) == [None, refused]
    assert refusals_of(ACCOUNT, risky(10, 98)) == [refused]
    # A hold reduces the credit for the overage of other calls, even if it has no overage itself.
    assert refusals_of(ACCOUNT, risky(10, 90), risky(8, 0), risky(7, 0)) == [None, refused, None]
    # The possible overage of a refused call does not count.
    assert refusals_of(ACCOUNT, risky(10, 98), risky(10, 97)) == [refused, None]


def test_overage_in_flight_of_earlier_batches_counts() -> None:
    running = replace(ACCOUNT, spend=Spend(held_picousd=5), overage_in_flight_picousd=60)
    assert refusals_of(running, risky(10, 37)) == [None]
    assert refusals_of(running, risky(10, 38)) == [Refusal.OVERAGE_IN_FLIGHT]
    # Calls with a hold of zero are in flight too.
    free = replace(running, spend=Spend())
    assert refusals_of(free, risky(10, 37)) == [None]
    assert refusals_of(free, risky(10, 38)) == [Refusal.OVERAGE_IN_FLIGHT]


@each(("overage_max", "retry_after_s"), [(102, 1), (103, None)])
def test_a_refusal_tells_whether_running_calls_are_the_reason(
    overage_max: int, retry_after_s: int | None
) -> None:
    running = replace(ACCOUNT, spend=Spend(held_picousd=5), overage_in_flight_picousd=60)
    _, [decision] = decide(running, [risky(10, overage_max)], now_us=NOW_US)
    assert decision.refusal is Refusal.OVERAGE_IN_FLIGHT
    assert decision.retry_after_s == retry_after_s
    # The call needs more than the available amount plus the bound.
    assert (decision.needed_picousd, decision.available_picousd) == (10 + overage_max, 40)
    assert decision.limit == 7


def test_without_a_bound_overage_in_flight_does_not_count() -> None:
    unbounded = replace(ACCOUNT, overage_bound_picousd=None)
    assert refusals_of(unbounded, risky(10, 10**9), risky(10, 10**9)) == [None, None]


@each("kind", FoldKind)
@each("was_unsettled", [False, True])
def test_a_call_that_ended_is_not_in_flight(kind: FoldKind, was_unsettled: bool) -> None:
    running = replace(
        ACCOUNT,
        spend=Spend(held_picousd=5, unsettled_picousd=5),
        overage_in_flight_picousd=60,
    )
    fold = Fold(PROJECT, kind, was_unsettled, 1, 5, 5, 9, overage_max_picousd=20)
    # A call that was unsettled before is no longer in flight.
    left = 60 if was_unsettled else 40
    assert running.folded(fold).overage_in_flight_picousd == left
