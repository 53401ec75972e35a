"""The bound of overage in the pure decision: when it stops, whom, and what it leaves alone."""

import pytest
from msgspec.structs import replace

from tests.domain.admission_strategies import KEYS, NOW_US, PROJECTS
from tollkeeper.domain.access import KeyStatus
from tollkeeper.domain.admission import (
    RATE_UNITS_PER_REQUEST,
    AccountState,
    AdmissionRequest,
    ProjectState,
    Refusal,
    decide,
)
from tollkeeper.domain.spend import Spend

PROJECT, KEY = PROJECTS[0], KEYS[0]
ACCOUNT = AccountState(
    available_picousd=100,
    overage_picousd=0,
    spend=Spend(),
    cap=None,
    projects={
        PROJECT: ProjectState(
            spend=Spend(),
            cap=None,
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
    after, [decision] = decide(state, [request], now_us=NOW_US, month=0)
    return after, decision.refusal


@pytest.mark.parametrize(
    ("available", "held", "unsettled", "refusal"),
    [
        (-7, 0, 0, Refusal.CREDIT),
        (-8, 0, 0, Refusal.OVERAGE),
        # What is held is not spent, nor is what nobody knows.
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
    """A grant decides on nothing, but brings the account up to date first."""
    state = replace(ACCOUNT, available_picousd=-8, overage_picousd=8)
    after, _ = decide(state, [], now_us=NOW_US, month=0)
    assert after.stopped


def test_a_key_that_is_not_active_learns_nothing() -> None:
    state = replace(ACCOUNT, stopped=True, keys={KEY: KeyStatus.REVOKED})
    assert refusal_of(state)[1] is Refusal.KEY_NOT_ACTIVE
