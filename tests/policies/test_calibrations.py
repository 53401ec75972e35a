"""Tests that a calibration changes verdicts after its activation, and only for its rule and judge."""

from dataclasses import replace

import pytest

from tests.support.judged_gateway import JUDGE_MODEL, JudgedGateway, assert_denied
from tollkeeper.core.errors import NotFound, StateConflict
from tollkeeper.policies.calibration.rule import Calibration, Fitted, LabelledScore, Shape, measure
from tollkeeper.policies.judge.rule import prompt_format
from tollkeeper.policies.policy import JudgeFormat, Policy

# Halves the log-odds: 9000 basis points become 7500, because 0.75 / 0.25 squared is 0.9 / 0.1.
_HALF = Calibration(Shape.LINE, ((0.5, 0.0),))


def _fitted(calibration: Calibration = _HALF) -> Fitted:
    found = measure([LabelledScore(float(number), number % 3 > 0) for number in range(-10, 10)])
    return Fitted(calibration, found.labels, found.before, found.after)


async def _store(
    judged: JudgedGateway, policy: Policy, *, rule: str | None = None, model: str | None = None
) -> int:
    gateway = judged.scripted.gateway
    used = JudgeFormat(model or JUDGE_MODEL, prompt_format())
    asked = rule or policy.draft.rule
    stored = await gateway.services.calibrations.calibration_create(
        policy.organization_id, policy.id, asked, used, _fitted(), {"labels": 20}
    )
    return stored.number


async def _activate(judged: JudgedGateway, policy: Policy, number: int | None) -> None:
    services = judged.scripted.gateway.services
    await services.calibrations.calibration_activate(policy.organization_id, policy.id, number)


async def _value(judged: JudgedGateway, text: str) -> int | None:
    answer = await judged.chat(text)
    (verdict,) = (await judged.entry(answer)).verdicts
    return verdict.probability_basis_points


async def test_the_threshold_applies_to_the_calibrated_value(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="request", match_threshold_basis_points=8000)
    judged.judge.opinion = lambda _: 9000
    assert_denied(await judged.chat("one"), policy, "request")
    number = await _store(judged, policy)
    # A calibration has no effect before an operator activates it.
    assert_denied(await judged.chat("two"), policy, "request")
    await _activate(judged, policy, number)
    answer = await judged.chat("three")
    assert answer.status_code == 200
    assert await _value(judged, "four") == 7500
    await _activate(judged, policy, None)
    assert_denied(await judged.chat("five"), policy, "request")


@pytest.mark.parametrize("model", ["another-judge", None])
async def test_a_calibration_of_another_judge_does_not_apply(
    judged: JudgedGateway, model: str | None
) -> None:
    policy = await judged.enforce(direction="request", match_threshold_basis_points=9999)
    judged.judge.opinion = lambda _: 9000
    await _activate(judged, policy, await _store(judged, policy, model=model))
    assert await _value(judged, "text") == (9000 if model else 7500)


async def test_a_new_rule_is_not_calibrated(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="request", match_threshold_basis_points=9999)
    judged.judge.opinion = lambda _: 9000
    await _activate(judged, policy, await _store(judged, policy))
    policies = judged.scripted.gateway.services.policies
    edited = await policies.policy_edit(
        policy.organization_id,
        policy.id,
        policy.revision,
        name=None,
        description=None,
        changes={"rule": "Is it another question?"},
    )
    await judged.change("publish", edited)
    assert await _value(judged, "text") == 9000


async def test_what_cannot_be_activated(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="request")
    with pytest.raises(NotFound):
        await _activate(judged, policy, 1)
    other = await _store(judged, policy, rule="Is it another question?")
    with pytest.raises(StateConflict, match="another rule"):
        await _activate(judged, policy, other)
    other_tenant = await judged.scripted.gateway.make_tenant()
    foreign = replace(policy, organization_id=other_tenant.organization_id)
    with pytest.raises(NotFound):
        await _activate(judged, foreign, other)
    stored = await judged.scripted.gateway.services.calibrations.calibration_list(
        policy.organization_id, policy.id
    )
    assert [one.number for one in stored] == [other]
