"""Tests that each verdict is stored in a row, shown with its call and counted in the metrics."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from tests.support.judged_gateway import (
    LIKELY,
    UNLIKELY,
    JudgedGateway,
    judge_answer,
    judged_gateway,
)
from tests.support.scripted_gateway import eventually
from tests.support.upstream import Peer, chat_records, close_before_headers, hang, stream
from tollkeeper.policies import checks as policy_checks
from tollkeeper.policies.policy import Policy

_ROWS = """
    SELECT request_id::text, policy_id, version, direction, mode, probability_basis_points,
        threshold, matched, duration_ms >= 0, judged_at > now() - interval '1 minute'
    FROM policy_verdicts WHERE organization_id = %s ORDER BY policy_id, direction
"""


def _asked(mode: str, direction: str, outcome: str) -> float:
    labels = {"mode": mode, "direction": direction, "outcome": outcome}
    return REGISTRY.get_sample_value("tollkeeper_policy_verdicts_total", labels) or 0.0


async def test_each_verdict_leaves_a_row(judged: JudgedGateway) -> None:
    watched = await judged.publish("bomb", direction="both", match_threshold_basis_points=9001)
    decided = await judged.enforce("other", direction="response")
    judged.say("a bomb")
    found = await judged.chat("Hello")
    await judged.entry(found)
    rows = await judged.scripted.sql(_ROWS, judged.scripted.tenant.organization_id)
    request = found.headers["x-request-id"]

    def row(
        policy: Policy, direction: str, mode: str, probability: int, threshold: int
    ) -> tuple[object, ...]:
        named = (request, policy.id, 1, direction, mode)
        return (*named, probability, threshold, probability >= threshold, True, True)

    assert rows == sorted(
        [
            row(watched, "request", "monitoring", UNLIKELY, 9001),
            row(watched, "response", "monitoring", LIKELY, 9001),
            row(decided, "response", "enforcing", UNLIKELY, 5000),
        ],
        key=lambda found: found[1:],
    )


async def test_a_verdict_is_written_once_for_all_segments(data_dir: Path, conninfo: str) -> None:
    async with judged_gateway(data_dir, conninfo, judge={"segment_characters": 5}) as judged:
        await judged.enforce(direction="response")
        opinions = iter([100, 700, 300, 200])
        judged.judge.opinion = lambda _: next(opinions)
        judged.model.play(stream(chat_records(["12345", "67890", "abcde", "!"]), pause_s=0.03))
        found = await judged.chat(stream=True)
        assert found.status_code == 200
        (verdict,) = (await judged.entry(found)).verdicts
        assert verdict.probability_basis_points == 700
        assert len(judged.judge.asked) == 4


async def test_verdicts_are_counted(judged: JudgedGateway) -> None:
    await judged.publish("bomb", direction="request")
    before = {
        outcome: _asked("monitoring", "request", outcome)
        for outcome in ("matched", "passed", "missing")
    }
    await judged.entry(await judged.chat("a bomb"))
    await judged.entry(await judged.chat("peace"))
    judged.judge.opinion = lambda _: close_before_headers()
    await judged.entry(await judged.chat("silence"))
    after = {outcome: _asked("monitoring", "request", outcome) for outcome in before}
    assert {outcome: after[outcome] - before[outcome] for outcome in before} == {
        "matched": 1,
        "passed": 1,
        "missing": 1,
    }
    labels = {"mode": "monitoring", "direction": "request"}
    assert (REGISTRY.get_sample_value("tollkeeper_policy_seconds_count", labels) or 0) >= 3


async def test_the_same_text_is_judged_once(judged: JudgedGateway) -> None:
    """This is true for one version of one policy. Another version or policy is asked again."""
    policy = await judged.publish(direction="both")
    judged.say("Hello")
    for _ in range(3):
        found = await judged.chat("Hello")
        verdicts = (await judged.entry(found)).verdicts
        assert [verdict.probability_basis_points for verdict in verdicts] == [UNLIKELY] * 2
    # The judge reads the request with its role, and the answer as plain text.
    assert sorted(judged.judge.texts) == ["Hello", "[user]\nHello"]
    await judged.change("publish", await judged.change("pause", policy))
    await judged.entry(await judged.chat("Hello"))
    assert len(judged.judge.asked) == 4
    other = await judged.with_tenant()
    await other.publish(direction="both")
    await other.entry(await other.chat("Hello"))
    assert len(judged.judge.asked) == 6


def _answers_late(judged: JudgedGateway) -> asyncio.Event:
    """Makes the judge wait with its answers until the returned event is set."""
    go_on = asyncio.Event()

    async def late(peer: Peer) -> None:
        await go_on.wait()
        await judge_answer(LIKELY)(peer)

    judged.judge.opinion = lambda _: late
    return go_on


async def test_too_much_to_watch_is_recorded_as_missing(
    judged: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_checks, "_WATCHED_CHARACTERS_MAX", 2000)
    await judged.publish(direction="request")
    go_on = _answers_late(judged)
    first = await judged.chat("a" * 1500)
    second = await judged.chat("b" * 1500)
    assert (first.status_code, second.status_code) == (200, 200)
    go_on.set()
    assert [found.matched for found in (await judged.entry(first)).verdicts] == [True]
    (missing,) = (await judged.entry(second)).verdicts
    assert missing.probability_basis_points is None
    # The first text is finished, so the next text is judged.
    assert [found.matched for found in (await judged.entry(await judged.chat("c"))).verdicts] == [
        True
    ]


@pytest.mark.parametrize(
    ("bound", "most"), [("_WATCHED_MAX", 8), ("_WATCHED_CHARACTERS_MAX", 8000)]
)
async def test_one_organization_does_not_have_all_that_is_watched(
    judged: JudgedGateway, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    """A hostile tenant has a monitoring policy and many texts that wait for the judge. The monitoring
    policy of another tenant is still judged."""
    monkeypatch.setattr(policy_checks, bound, most)
    quiet = await judged.with_tenant()
    await judged.publish(direction="request")
    await quiet.publish(direction="request")
    go_on = _answers_late(judged)
    floods = [await judged.chat(f"{number}".rjust(990, "x")) for number in range(10)]
    watched = await quiet.chat("x" * 500)
    go_on.set()
    assert [found.matched for found in (await quiet.entry(watched)).verdicts] == [True]
    verdicts = [verdict for flood in floods for verdict in (await judged.entry(flood)).verdicts]
    assert [verdict.matched for verdict in verdicts] == [True] * 7 + [False] * 3


async def test_too_many_to_watch_are_recorded_as_missing(
    judged: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_checks, "_WATCHED_MAX", 0)
    await judged.publish(direction="both")
    verdicts = (await judged.entry(await judged.chat())).verdicts
    assert [verdict.probability_basis_points for verdict in verdicts] == [None, None]
    assert judged.judge.asked == []


async def test_who_ends_does_not_wait_long_for_a_judge(
    data_dir: Path, conninfo: str, monkeypatch: pytest.MonkeyPatch, judged: JudgedGateway
) -> None:
    """The gateway stops while verdicts are pending. They are recorded as missing."""
    monkeypatch.setattr(policy_checks, "_DRAIN_TIMEOUT_S", 0.1)
    async with judged_gateway(data_dir, conninfo, judge={"deadline_s": 3600}) as ending:
        await ending.publish(direction="both")
        ending.judge.opinion = lambda _: hang()
        found = await ending.chat()
        await eventually(lambda: len(ending.judge.asked) == 2)
        tenant = ending.scripted.tenant
    rows = await judged.scripted.sql(
        "SELECT request_id::text, probability_basis_points FROM policy_verdicts"
        " WHERE organization_id = %s",
        tenant.organization_id,
    )
    assert rows == [(found.headers["x-request-id"], None)] * 2


async def test_what_is_watched_leaves_nothing_behind(judged: JudgedGateway) -> None:
    await judged.publish(direction="both")
    async with judged.scripted.leaving_nothing():
        await judged.entry(await judged.chat("a bomb"))
