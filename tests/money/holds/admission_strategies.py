"""Generates accounts and requests, with Hypothesis or from a seed. They are small, to reach limits often."""

import random
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tollkeeper.core.access import KeyId, KeyStatus, ProjectId
from tollkeeper.money.caps.rule import CapCounter, CapPeriod, CapSubject, period_number
from tollkeeper.money.holds.rule import (
    RATE_UNITS_PER_REQUEST,
    AccountState,
    AdmissionRequest,
    ProjectState,
)
from tollkeeper.money.holds.spend import Spend

NOW_US = 1_800_000_000_000_000
TODAY = NOW_US // 86_400_000_000
PROJECTS = tuple(ProjectId(UUID(int=number)) for number in range(1, 4))
STRANGE_PROJECT = ProjectId(UUID(int=99))
KEYS = tuple(KeyId(UUID(int=number)) for number in range(11, 16))
MODELS = ("a", "b", "c")
STATUSES = dict(zip(KEYS, (*KeyStatus, None), strict=True))

# Small amounts often reach a limit, and huge amounts overflow integers of a fixed width.
amounts = st.one_of(st.integers(0, 12), st.integers(10**24, 10**24 + 3))
# Most projects and keys have no list of allowed models.
model_lists = st.sampled_from(((), (), (), MODELS[:2], MODELS[1:]))


@st.composite
def spends(draw: st.DrawFn) -> Spend:
    return Spend(
        held_picousd=draw(st.integers(0, 20)),
        unsettled_picousd=draw(st.integers(0, 20)),
        settled_picousd=draw(st.integers(0, 20)),
    )


@st.composite
def projects(draw: st.DrawFn) -> ProjectState:
    requests_per_minute = draw(st.sampled_from((1, 2, 3, 6000)))
    full = requests_per_minute * RATE_UNITS_PER_REQUEST
    return ProjectState(
        spend=draw(spends()),
        archived=draw(st.integers(0, 9)) == 0,
        live_holds=draw(st.integers(0, 4)),
        concurrency=draw(st.integers(1, 8)),
        requests_per_minute=requests_per_minute,
        rate_units=draw(st.integers(0, full)),
        rate_at_us=NOW_US - draw(st.integers(-10_000_000, 70_000_000)),
        models=draw(model_lists),
    )


@st.composite
def caps(draw: st.DrawFn) -> dict[str, Any]:
    """Generates caps for half of the accounts."""
    if draw(st.booleans()):
        return {}
    return random_caps(random.Random(draw(st.integers(0, 2**32))))


@st.composite
def accounts(draw: st.DrawFn) -> AccountState:
    drawn = draw(st.lists(projects(), min_size=1, max_size=len(PROJECTS)))
    return AccountState(
        available_picousd=draw(
            st.one_of(st.integers(-5, 60), st.integers(2 * 10**24, 3 * 10**24 + 7))
        ),
        overage_picousd=5,
        spend=draw(spends()),
        projects=dict(zip(PROJECTS, drawn, strict=False)),
        keys={key: status for key, status in STATUSES.items() if status is not None},
        overage_bound_picousd=draw(st.none() | st.integers(0, 5)),
        overage_in_flight_picousd=draw(st.just(0) | st.integers(0, 9)),
        stopped=draw(st.integers(0, 9)) == 0,
        key_models=draw(st.dictionaries(st.sampled_from(KEYS), model_lists, max_size=2)),
        **draw(caps()),
    )


requests = st.builds(
    AdmissionRequest,
    # The first project and the active key are drawn most often.
    project_id=st.sampled_from((PROJECTS[0], *PROJECTS, STRANGE_PROJECT)),
    key_id=st.sampled_from((KEYS[0],) * 6 + KEYS),
    hold_picousd=amounts,
    overage_max_picousd=st.just(0) | st.integers(0, 9),
    model=st.sampled_from(MODELS),
)
batches = st.lists(requests, max_size=12)


# The functions below generate similar values from a seed: fifty times faster than Hypothesis, but
# without shrinking.


def random_account(rng: random.Random) -> AccountState:
    return AccountState(
        available_picousd=rng.choice((rng.randint(-5, 60), rng.randint(2 * 10**24, 3 * 10**24))),
        overage_picousd=5,
        spend=_random_spend(rng),
        projects={project_id: _random_project(rng) for project_id in PROJECTS[: rng.randint(1, 3)]},
        keys={key: status for key, status in STATUSES.items() if status is not None},
        overage_bound_picousd=rng.choice((None, None, rng.randint(0, 5))),
        overage_in_flight_picousd=rng.choice((0, rng.randint(0, 9))),
        stopped=rng.random() < 0.05,
        key_models={key: _random_models(rng) for key in KEYS if rng.random() < 0.2},
        **(random_caps(rng) if rng.random() < 0.5 else {}),
    )


def random_caps(rng: random.Random) -> dict[str, Any]:
    caps = {}
    owners: tuple[CapSubject, ...] = (None, *PROJECTS, *KEYS)
    for owner in owners:
        for period in CapPeriod:
            if rng.random() < 0.15:
                counts = (rng.randint(0, 20), rng.randint(0, 20))
                number = period_number(period, TODAY)
                caps[owner, period] = CapCounter(rng.randint(0, 60), number, *counts)
    # Some keys were created by rotations of other keys.
    first_keys = {key: rng.choice((KEYS[0], KEYS[1])) for key in KEYS[2:] if rng.random() < 0.4}
    if rng.random() < 0.3:
        first_keys[KEYS[0]] = KEYS[3]
    return {"is_capped": True, "caps": caps, "first_keys": first_keys}


def random_request(rng: random.Random) -> AdmissionRequest:
    return AdmissionRequest(
        project_id=rng.choice((PROJECTS[0], *PROJECTS, STRANGE_PROJECT)),
        key_id=rng.choice((KEYS[0],) * 12 + KEYS),
        hold_picousd=rng.choice((0, 1, rng.randint(0, 12), 10**24 + rng.randint(0, 3))),
        overage_max_picousd=rng.choice((0, rng.randint(0, 9))),
        model=rng.choice(MODELS),
    )


def _random_project(rng: random.Random) -> ProjectState:
    requests_per_minute = rng.choice((1, 2, 3, 6000))
    return ProjectState(
        spend=_random_spend(rng),
        archived=rng.random() < 0.1,
        live_holds=rng.randint(0, 4),
        concurrency=rng.randint(1, 8),
        requests_per_minute=requests_per_minute,
        rate_units=rng.randint(0, requests_per_minute * RATE_UNITS_PER_REQUEST),
        rate_at_us=NOW_US - rng.randint(-10_000_000, 70_000_000),
        models=_random_models(rng),
    )


def _random_models(rng: random.Random) -> tuple[str, ...]:
    return rng.choice(((), (), (), MODELS[:2], MODELS[1:]))


def _random_spend(rng: random.Random) -> Spend:
    return Spend(rng.randint(0, 20), rng.randint(0, 20), rng.randint(0, 20))
