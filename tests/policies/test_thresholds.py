"""Tests that a policy matches if its value reaches the threshold, for requests and responses."""

import pytest

from tests.support.judged_gateway import JudgedGateway, assert_denied

_DEFAULT = 5000


@pytest.mark.parametrize("direction", ["request", "response"])
@pytest.mark.parametrize("threshold", [1, 2, 4321, _DEFAULT, 9998, 9999])
async def test_at_one_under_and_one_over(
    judged: JudgedGateway, threshold: int, direction: str
) -> None:
    policy = await judged.enforce(direction=direction, match_threshold_basis_points=threshold)
    for offset in (-1, 0, 1):
        found = threshold + offset
        judged.judge.opinion = lambda _, found=found: found  # type: ignore[misc]
        judged.say(f"answer {offset}")  # a new text, because scores are cached
        answer = await judged.chat(f"question {offset}")
        if offset < 0:
            assert answer.status_code == 200, answer.text
        else:
            assert_denied(answer, policy, direction)
        (verdict,) = (await judged.entry(answer)).verdicts
        assert (verdict.probability_basis_points, verdict.matched) == (found, offset >= 0)
        assert verdict.threshold_basis_points == threshold


@pytest.mark.parametrize(("found", "denied"), [(4999, False), (5000, True)])
async def test_without_a_threshold_the_settings_decide(
    judged: JudgedGateway, found: int, denied: bool
) -> None:
    policy = await judged.enforce(direction="request")
    judged.judge.opinion = lambda _: found
    answer = await judged.chat()
    if denied:
        assert_denied(answer, policy, "request")
    else:
        assert answer.status_code == 200


async def test_a_published_threshold_stays_until_the_next_version(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="request", match_threshold_basis_points=6000)
    judged.judge.opinion = lambda _: 5500
    assert (await judged.chat("one")).status_code == 200
    policies = judged.scripted.gateway.services.policies
    edited = await policies.policy_edit(
        policy.organization_id,
        policy.id,
        policy.revision,
        name=None,
        description=None,
        changes={"match_threshold_basis_points": None},
    )
    assert (await judged.chat("two")).status_code == 200
    published = await judged.change("publish", edited)
    answer = await judged.chat("three")
    assert_denied(answer, published, "request")
    (verdict,) = (await judged.entry(answer)).verdicts
    assert (verdict.version, verdict.threshold_basis_points) == (2, _DEFAULT)
