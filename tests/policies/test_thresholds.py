"""A match is a probability at or above the threshold, on both sides of a call."""

import pytest

from tests.policies.court import Court, assert_denied

_DEFAULT = 5000


@pytest.mark.parametrize("direction", ["request", "response"])
@pytest.mark.parametrize("threshold", [1, 2, 4321, _DEFAULT, 9998, 9999])
async def test_at_one_under_and_one_over(court: Court, threshold: int, direction: str) -> None:
    policy = await court.enforce(direction=direction, match_threshold_basis_points=threshold)
    for offset in (-1, 0, 1):
        found = threshold + offset
        court.judge.opinion = lambda _, found=found: found  # type: ignore[misc]
        court.say(f"answer {offset}")  # the same text would not be judged twice
        answer = await court.chat(f"question {offset}")
        if offset < 0:
            assert answer.status_code == 200, answer.text
        else:
            assert_denied(answer, policy, direction)
        (verdict,) = (await court.entry(answer)).verdicts
        assert (verdict.probability_basis_points, verdict.matched) == (found, offset >= 0)
        assert verdict.threshold_basis_points == threshold


@pytest.mark.parametrize(("found", "denied"), [(4999, False), (5000, True)])
async def test_without_a_threshold_the_settings_decide(
    court: Court, found: int, denied: bool
) -> None:
    policy = await court.enforce(direction="request")
    court.judge.opinion = lambda _: found
    answer = await court.chat()
    if denied:
        assert_denied(answer, policy, "request")
    else:
        assert answer.status_code == 200


async def test_a_published_threshold_stays_until_the_next_version(court: Court) -> None:
    policy = await court.enforce(direction="request", match_threshold_basis_points=6000)
    court.judge.opinion = lambda _: 5500
    assert (await court.chat("one")).status_code == 200
    policies = court.lab.gateway.services.policies
    edited = await policies.policy_edit(
        policy.organization_id,
        policy.id,
        policy.revision,
        name=None,
        description=None,
        changes={"match_threshold_basis_points": None},
    )
    assert (await court.chat("two")).status_code == 200
    published = await court.change("publish", edited)
    answer = await court.chat("three")
    assert_denied(answer, published, "request")
    (verdict,) = (await court.entry(answer)).verdicts
    assert (verdict.version, verdict.threshold_basis_points) == (2, _DEFAULT)
