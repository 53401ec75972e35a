"""Tests that the first judge settles clear cases and that the judge decides all others."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.judged_gateway import (
    LIKELY,
    UNLIKELY,
    Asked,
    JudgedGateway,
    Opinion,
    assert_denied,
    judged_gateway,
)
from tests.support.upstream import hang, refuse
from tollkeeper.core.reports import DayRange

_FIRST = "the-first-judge"
# The first judge settles scores below this limit, in basis points.
_LIMIT = 2000


@pytest.fixture(scope="module")
async def shared_cascade(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    first = {"backend": "judge", "model": _FIRST, "settles_below_basis_points": _LIMIT}
    judge = {"first": first, "deadline_s": 2}
    # One server plays both judges, which differ by the model's name in the request.
    async with judged_gateway(data_dir, conninfo, judge=judge) as running:
        yield running


@pytest.fixture
async def cascade(shared_cascade: JudgedGateway) -> JudgedGateway:
    return await shared_cascade.for_next_test()


def _say(cascade: JudgedGateway, *, first: Opinion, judge: Opinion) -> None:
    def opinion(asked: Asked) -> Opinion:
        return first if asked.received.json["model"] == _FIRST else judge

    cascade.judge.opinion = opinion


def _models(cascade: JudgedGateway) -> list[str]:
    return [asked.received.json["model"] for asked in cascade.judge.asked]


async def test_a_clear_case_is_settled_by_the_small_judge(cascade: JudgedGateway) -> None:
    await cascade.enforce(direction="request")
    _say(cascade, first=_LIMIT - 1, judge=LIKELY)
    found = await cascade.chat("Hello")
    assert found.status_code == 200
    assert _models(cascade) == [_FIRST]
    (verdict,) = (await cascade.entry(found)).verdicts
    assert not verdict.matched
    assert (verdict.probability_basis_points, verdict.first_basis_points) == (_LIMIT - 1,) * 2


@pytest.mark.parametrize("judge", [LIKELY, UNLIKELY])
async def test_the_judge_decides_the_rest(cascade: JudgedGateway, judge: int) -> None:
    policy = await cascade.enforce(direction="request")
    _say(cascade, first=_LIMIT, judge=judge)
    found = await cascade.chat("Hello")
    if judge == LIKELY:
        assert_denied(found, policy, "request")
    else:
        assert found.status_code == 200
    assert sorted(_models(cascade)) == [_FIRST, "the-judge"]
    (verdict,) = (await cascade.entry(found)).verdicts
    assert (verdict.probability_basis_points, verdict.first_basis_points) == (judge, _LIMIT)
    await cascade.scripted.gateway.services.judge_costs.write()
    used = await cascade.scripted.gateway.services.judge_costs.judge_usage(
        cascade.scripted.tenant.organization_id, DayRange(0, 10**6)
    )
    assert [(one.model, one.questions) for one in used] == [
        ("the-first-judge", 1),
        ("the-judge", 1),
    ]


async def test_the_small_judge_alone_denies_nothing(cascade: JudgedGateway) -> None:
    await cascade.enforce(direction="request")
    _say(cascade, first=10_000, judge=UNLIKELY)
    assert (await cascade.chat("Hello")).status_code == 200


async def test_a_threshold_below_the_limit_counts(cascade: JudgedGateway) -> None:
    """The first judge must not settle a case whose score reaches the policy's threshold."""
    await cascade.enforce(direction="request", match_threshold_basis_points=300)
    _say(cascade, first=400, judge=350)
    assert (await cascade.chat("Hello")).status_code == 403


async def test_only_open_questions_go_to_the_judge(cascade: JudgedGateway) -> None:
    for word in ("bomb", "gun", "poison"):
        await cascade.enforce(word, direction="request")
    cascade.judge.opinion = lambda asked: 9000 if "gun" in asked.question else 10
    assert (await cascade.chat("Hello")).status_code == 403
    by_judge = [
        asked.question
        for asked in cascade.judge.asked
        if asked.received.json["model"] == "the-judge"
    ]
    assert by_judge == ["Does it say gun?"]


@pytest.mark.parametrize("fault", ["down", "late"])
async def test_without_the_small_judge_the_judge_decides(
    cascade: JudgedGateway, fault: str
) -> None:
    policy = await cascade.enforce(direction="request")
    _say(cascade, first=refuse(400) if fault == "down" else hang(), judge=LIKELY)
    found = await cascade.chat("Hello")
    assert_denied(found, policy, "request")
    (verdict,) = (await cascade.entry(found)).verdicts
    assert (verdict.probability_basis_points, verdict.first_basis_points) == (LIKELY, None)


async def test_without_the_judge_it_fails_closed(cascade: JudgedGateway) -> None:
    await cascade.enforce(direction="request")
    _say(cascade, first=_LIMIT, judge=refuse(400))
    found = await cascade.chat("Hello")
    assert found.status_code == 503
    (verdict,) = (await cascade.entry(found)).verdicts
    assert (verdict.probability_basis_points, verdict.first_basis_points) == (None, _LIMIT)
