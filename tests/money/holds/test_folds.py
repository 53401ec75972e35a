"""Tests that the result of folding does not depend on the order or the grouping of folds."""

import random
from collections.abc import Sequence
from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.money.holds.admission_strategies import KEYS, PROJECTS
from tollkeeper.core.access import KeyStatus, ProjectId
from tollkeeper.money.holds.rule import AccountState, ProjectState
from tollkeeper.money.holds.spend import Fold, FoldKind, Spend

examples = settings(max_examples=50, derandomize=True, database=None)


@st.composite
def ended_reservations(draw: st.DrawFn) -> tuple[AccountState, list[Fold]]:
    """Generates an account with holds, and the folds of those that ended."""
    folds: list[Fold] = []
    holds = []
    for _ in range(draw(st.integers(1, 8))):
        project_id = draw(st.sampled_from(PROJECTS))
        hold = draw(st.integers(0, 9) | st.integers(10**24, 10**24 + 9))
        cost = draw(st.integers(0, 12) | st.just(hold))
        holds.append((project_id, hold))
        resolved = Fold(
            project_id=project_id,
            kind=FoldKind.RESOLVED,
            was_unsettled=False,
            count=1,
            hold_picousd=hold,
            settled_picousd=min(hold, cost),
            overage_picousd=max(0, cost - hold),
        )
        mark = replace(resolved, kind=FoldKind.UNSETTLED, settled_picousd=0, overage_picousd=0)
        match draw(st.sampled_from(("held", "marked", "resolved", "marked and resolved"))):
            case "marked":
                folds.append(mark)
            case "resolved":
                folds.append(resolved)
            case "marked and resolved":
                folds += [mark, replace(resolved, was_unsettled=True)]
    return account_with(holds), folds


def account_with(holds: Sequence[tuple[ProjectId, int]]) -> AccountState:
    projects = {}
    for project_id in PROJECTS:
        mine = [hold for owner, hold in holds if owner == project_id]
        projects[project_id] = ProjectState(
            spend=Spend(held_picousd=sum(mine)),
            archived=False,
            live_holds=len(mine),
            concurrency=1,
            requests_per_minute=1,
            rate_units=0,
            rate_at_us=0,
        )
    return AccountState(
        available_picousd=0,
        overage_picousd=0,
        spend=Spend(held_picousd=sum(hold for _, hold in holds)),
        projects=projects,
        keys={KEYS[0]: KeyStatus.ACTIVE},
    )


def folded(state: AccountState, folds: list[Fold]) -> AccountState:
    return reduce(AccountState.folded, folds, state)


@examples
@given(ended_reservations(), st.randoms(use_true_random=False))
def test_the_order_does_not_matter(
    world: tuple[AccountState, list[Fold]], rng: random.Random
) -> None:
    state, folds = world
    shuffled = folds.copy()
    rng.shuffle(shuffled)
    assert folded(state, shuffled) == folded(state, folds)


@examples
@given(ended_reservations())
def test_money_is_conserved(world: tuple[AccountState, list[Fold]]) -> None:
    state, folds = world
    after = folded(state, folds)
    for one in (state, after):
        spend = one.spend
        assert state.spend.held_picousd == (
            one.available_picousd
            + spend.held_picousd
            + spend.unsettled_picousd
            + spend.settled_picousd
        )
        for name in ("held", "unsettled", "settled"):
            parts = [getattr(project.spend, f"{name}_picousd") for project in one.projects.values()]
            assert sum(parts) == getattr(spend, f"{name}_picousd")
    assert after.available_picousd >= -after.overage_picousd


@examples
@given(ended_reservations())
def test_nothing_falls_below_zero(world: tuple[AccountState, list[Fold]]) -> None:
    state, folds = world
    after = folded(state, folds)
    assert all(project.live_holds >= 0 for project in after.projects.values())
    for spend in (after.spend, *(project.spend for project in after.projects.values())):
        assert spend.held_picousd >= 0
        assert spend.unsettled_picousd >= 0


@examples
@given(ended_reservations())
def test_a_group_is_the_sum_of_its_members(world: tuple[AccountState, list[Fold]]) -> None:
    """The storage folds whole groups, but the model in the tests folds one reservation at a time."""
    state, folds = world
    groups: dict[tuple[object, ...], Fold] = {}
    for fold in folds:
        name = (fold.project_id, fold.kind, fold.was_unsettled)
        before = groups.get(name)
        if before is not None:
            fold = replace(  # noqa: PLW2901 - grows as the group does
                fold,
                count=before.count + fold.count,
                hold_picousd=before.hold_picousd + fold.hold_picousd,
                settled_picousd=before.settled_picousd + fold.settled_picousd,
                overage_picousd=before.overage_picousd + fold.overage_picousd,
            )
        groups[name] = fold
    assert folded(state, list(groups.values())) == folded(state, folds)
