"""Tests requests that are judged while the backend works: the client gets no byte before the verdict."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.gateway import assert_error
from tests.support.judged_gateway import (
    LIKELY,
    JudgedGateway,
    assert_denied,
    judge_answer,
    judged_gateway,
)
from tests.support.responses_answers import respond
from tests.support.scripted_gateway import COST, eventually
from tests.support.upstream import Peer, hang, refuse
from tollkeeper.core.errors import without_quotations
from tollkeeper.policies import checks as policy_checks


@pytest.fixture(scope="module")
async def overlapping(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    async with judged_gateway(data_dir, conninfo, judge={"overlap": True}) as judged:
        yield judged


@pytest.fixture
async def beside(overlapping: JudgedGateway) -> JudgedGateway:
    return await overlapping.for_next_test()


class Deciding:
    """A judge that answers only after the test has called `decide`."""

    def __init__(self, judged: JudgedGateway) -> None:
        self._decided = asyncio.Event()
        self._opinion = 0
        judged.judge.opinion = lambda _: self._wait

    def decide(self, opinion: int) -> None:
        self._opinion = opinion
        self._decided.set()

    async def _wait(self, peer: Peer) -> None:
        await self._decided.wait()
        await judge_answer(self._opinion)(peer)


@pytest.mark.parametrize("opinion", [0, LIKELY])
@pytest.mark.parametrize("direction", ["request", "both"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("face", ["chat", "responses"])
async def test_the_answer_waits_for_the_verdict(
    beside: JudgedGateway, face: str, streamed: bool, direction: str, opinion: int
) -> None:
    policy = await beside.enforce(direction=direction)
    deciding = Deciding(beside)
    dispatched = len(beside.model.requests)
    ask = beside.scripted.chat if face == "chat" else partial(respond, beside.scripted)
    asking = asyncio.create_task(ask(stream=streamed))
    # The backend has the request already, but the gateway holds its answer back.
    await eventually(lambda: len(beside.model.requests) == dispatched + 1)
    done, _ = await asyncio.wait([asking], timeout=0.1)
    assert not done
    deciding.decide(opinion)
    found = await asking
    if opinion:
        assert_denied(found, policy, "request")
    else:
        assert found.status_code == 200
        assert "lo" in found.text
    entry = await beside.scripted.entry_of(found)
    assert (entry.status, entry.cost) == ("settled", COST)


async def test_a_denial_does_not_wait_for_the_backend(beside: JudgedGateway) -> None:
    """The gateway cancels the request to the backend. The cost is unknown, so the call is unsettled."""
    policy = await beside.enforce(direction="request")
    beside.model.play(hang())
    found = await beside.chat("a bomb")
    assert_denied(found, policy, "request")
    entry = await beside.scripted.entry_of(found)
    assert (entry.status, entry.cost) == ("unsettled", 0)
    assert entry.reason == without_quotations(found.json()["error"]["message"])
    await eventually(lambda: beside.model.under_way == 0)


async def test_a_judge_that_fails_closes_here_too(beside: JudgedGateway) -> None:
    await beside.enforce(direction="request")

    answered = len(beside.model.requests) + 1

    async def fail_after_the_answer(peer: Peer) -> None:
        await eventually(lambda: len(beside.model.requests) == answered)
        await eventually(lambda: beside.model.under_way == 0)
        await asyncio.sleep(0.1)
        await refuse(500)(peer)

    beside.judge.opinion = lambda _: fail_after_the_answer
    found = await beside.chat()
    assert_error(found, 503, "service_unavailable")
    assert found.headers["x-should-retry"] == "false"
    assert (await beside.scripted.entry_of(found)).status == "settled"


async def test_a_judge_that_fails_while_the_backend_works(beside: JudgedGateway) -> None:
    await beside.enforce(direction="request")
    beside.model.play(hang())
    beside.judge.opinion = lambda _: refuse(500)
    found = await beside.chat()
    assert_error(found, 503, "service_unavailable")
    assert found.headers["x-should-retry"] == "false"
    assert (await beside.scripted.entry_of(found)).status == "unsettled"


async def test_a_backend_that_fails_first(beside: JudgedGateway) -> None:
    """The client gets the backend's error at once. The verdict is made later, and is recorded."""
    await beside.enforce(direction="request")
    deciding = Deciding(beside)
    beside.model.play(refuse(400))
    found = await beside.chat("a bomb")
    assert found.status_code == 422
    assert (await beside.scripted.entry_of(found)).status == "released"
    deciding.decide(LIKELY)
    (verdict,) = (await beside.entry(found)).verdicts
    assert verdict.matched


async def test_checks_of_calls_that_have_ended_are_bounded(
    beside: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory limit for bodies does not count calls that have ended, but the judge still needs
    their texts. Without a second limit, calls that the backend rejects at once would fill the memory."""
    monkeypatch.setattr(policy_checks, "_WATCHED_CHARACTERS_MAX", 8000)
    await beside.enforce(direction="request")
    deciding = Deciding(beside)
    beside.model.play(refuse(422))
    refused = [await beside.chat(str(number).rjust(990, "x")) for number in range(10)]
    assert {found.status_code for found in refused} == {422}
    checks = beside.scripted.gateway.services.checks
    await eventually(lambda: checks.judging == 7)
    deciding.decide(LIKELY)
    verdicts = [verdict for found in refused for verdict in (await beside.entry(found)).verdicts]
    assert [verdict.matched for verdict in verdicts] == [True] * 7 + [False] * 3
    assert [verdict.probability_basis_points for verdict in verdicts[7:]] == [None] * 3


async def test_monitoring_policies_hold_nothing_back(beside: JudgedGateway) -> None:
    await beside.publish(direction="request")
    deciding = Deciding(beside)
    found = await beside.chat("a bomb")
    assert found.status_code == 200
    deciding.decide(LIKELY)
    (verdict,) = (await beside.entry(found)).verdicts
    assert verdict.matched
