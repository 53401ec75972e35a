"""Tests clients that leave a long answer whose provider bills it to its end: the gateway reads on until the
deadline of the call, and books nothing that it doesn't know."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.judged_gateway import LIKELY, JudgedGateway, judge_answer, judged_gateway
from tests.support.paused_answer import PausedAnswer
from tests.support.raw_caller import raw_caller
from tests.support.scripted_gateway import (
    COST,
    Entry,
    ScriptedGateway,
    answering_gateway,
    eventually,
    read_stream,
    scripted_gateway,
)
from tests.support.upstream import Peer, chat, chat_records, reset_after, stream

_BACKEND = {"preset": "groq", "api_key_env": ""}
# The time for which the gateway reads any other answer on.
_DRAIN_S = 0.2
_DEADLINE_S = 3
_REASON = "bills the whole answer"


@pytest.fixture(scope="module")
async def shared_scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir,
        conninfo,
        backend=_BACKEND,
        drain_s=_DRAIN_S,
        limits={"inference_deadline_s": _DEADLINE_S},
        model={"supported_features": ["reasoning"]},
    ) as running:
        yield running


async def _leave(scripted: ScriptedGateway, *, streamed: bool = True, choices: int = 1) -> None:
    """Asks, and leaves when the upstream works on the answer."""
    under_way = scripted.upstream.under_way
    async with raw_caller(scripted) as caller:
        await caller.ask(stream=streamed, n=choices)
        if streamed:
            await caller.head()
            await caller.record()
        await eventually(lambda: scripted.upstream.under_way == under_way + choices)
        caller.leave(abruptly=True)


async def _entries(scripted: ScriptedGateway) -> list[Entry]:
    await eventually(lambda: scripted.gateway.services.inference.running == 0)
    await scripted.balance()
    return await scripted.entries()


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_long_answer_is_read_to_its_end(
    scripted: ScriptedGateway, streamed: bool, choices: int
) -> None:
    paused = PausedAnswer()

    async def late(peer: Peer) -> None:
        await paused.may_end.wait()
        await chat()(peer)

    scripted.upstream.play(paused.verb() if streamed else late)
    await _leave(scripted, streamed=streamed, choices=choices)
    await asyncio.sleep(_DRAIN_S + 0.5)
    paused.may_end.set()
    (entry,) = await _entries(scripted)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", choices * COST, False)


async def test_an_answer_beyond_the_deadline_stays_unsettled(scripted: ScriptedGateway) -> None:
    """The provider bills more than the gateway has read, but nobody knows how much."""
    scripted.upstream.play(PausedAnswer().verb())
    await _leave(scripted)
    (entry,) = await _entries(scripted)
    assert (entry.status, entry.cost) == ("unsettled", 0)
    assert entry.reason is not None
    assert _REASON in entry.reason


async def test_the_deadline_of_a_client_that_stays(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(PausedAnswer().verb())
    answered = await scripted.chat(stream=True)
    assert read_stream(answered.text).error is not None
    assert (await scripted.entry_of(answered)).status == "unsettled"


async def test_a_stream_that_the_provider_breaks_is_estimated(scripted: ScriptedGateway) -> None:
    """The gateway has not stopped reading, so the answer isn't longer than what it has read."""
    scripted.upstream.play(reset_after(2))
    entry = await scripted.entry_of(await scripted.chat(stream=True))
    assert (entry.status, entry.estimated) == ("settled", True)


async def test_an_answer_that_a_stopping_gateway_leaves(data_dir: Path, conninfo: str) -> None:
    """The model reasons, so an estimate would be the whole output limit."""
    model = {"supported_features": ["reasoning"]}
    async with answering_gateway(data_dir, conninfo, backend=_BACKEND, model=model) as stopping:
        stopping.upstream.play(PausedAnswer().verb())
        asking = asyncio.create_task(stopping.chat(stream=True))
        await eventually(lambda: stopping.upstream.under_way == 1)
        await stopping.gateway.services.inference.drain(0.3)
        entry = await stopping.entry_of(await asking)
        assert (entry.status, entry.cost) == ("unsettled", 0)


async def test_an_answer_whose_provider_is_silent_for_too_long(
    data_dir: Path, conninfo: str
) -> None:
    """The gateway closes the connection, but the provider may go on."""
    backend = {**_BACKEND, "idle_timeout_s": 0.3}
    async with answering_gateway(data_dir, conninfo, backend=backend) as impatient:
        impatient.upstream.play(PausedAnswer().verb())
        entry = await impatient.entry_of(await impatient.chat(stream=True))
        assert (entry.status, entry.cost) == ("unsettled", 0)


@pytest.fixture(scope="module")
async def segmenting(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    """Starts a gateway that judges a streamed answer after every six characters."""
    judge = {"segment_characters": 6}
    async with judged_gateway(data_dir, conninfo, backend=_BACKEND, judge=judge) as judged:
        yield judged


async def test_an_answer_that_a_policy_breaks_off(segmenting: JudgedGateway) -> None:
    """The provider writes and bills the rest of a denied answer, too."""
    judged = await segmenting.for_next_test()
    await judged.enforce(direction="response")
    paused = PausedAnswer()
    judged.model.play(paused.verb(pieces=4))
    judged.judge.opinion = lambda _: LIKELY
    found = await judged.chat(stream=True)
    assert found.status_code == 403
    entry = await judged.scripted.entry_of(found)
    assert (entry.status, entry.cost) == ("unsettled", 0)
    await eventually(paused.closed.is_set)


async def test_an_answer_that_a_policy_denies_at_its_end(segmenting: JudgedGateway) -> None:
    """All of it was read, so its own count is an estimate even without a report."""
    judged = await segmenting.for_next_test()
    await judged.enforce(direction="response")
    judged.model.play(stream(chat_records(["bomb"], usage=None)))
    found = await judged.chat(stream=True)
    assert found.status_code == 403
    entry = await judged.scripted.entry_of(found)
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == entry.delivered_pieces(1, "bomb")


async def test_an_answer_whose_request_a_policy_denies_meanwhile(
    data_dir: Path, conninfo: str
) -> None:
    overlap = {"overlap": True}
    async with judged_gateway(data_dir, conninfo, backend=_BACKEND, judge=overlap) as judged:
        await judged.enforce(direction="request")
        paused = PausedAnswer()
        judged.model.play(paused.verb())

        async def deny_late(peer: Peer) -> None:
            await eventually(lambda: judged.model.under_way == 1)
            await asyncio.sleep(0.2)
            await judge_answer(LIKELY)(peer)

        judged.judge.opinion = lambda _: deny_late
        found = await judged.chat(stream=True)
        assert found.status_code == 403
        entry = await judged.scripted.entry_of(found)
        assert (entry.status, entry.cost) == ("unsettled", 0)
        await eventually(paused.closed.is_set)


async def test_only_so_many_are_read_until_the_deadline(
    shared_scripted: ScriptedGateway, data_dir: Path, conninfo: str
) -> None:
    """An organization has a quarter of the places. Its further answers are read on for the usual time, and
    another organization still has its places."""
    async with scripted_gateway(
        data_dir,
        conninfo,
        shared_scripted.upstream,
        backend=_BACKEND,
        drain_s=_DRAIN_S,
        changed_constants={"setup.calls.InferenceLimits": {"long_drains_max": 8}},
    ) as hostile:
        quiet = await hostile.with_tenant()
        paused = PausedAnswer()
        hostile.upstream.play(paused.verb())
        for _ in range(4):
            await _leave(hostile)
        await eventually(lambda: hostile.gateway.services.inference.running == 2)
        await _leave(quiet)
        await asyncio.sleep(_DRAIN_S + 0.5)
        paused.may_end.set()
        (entry,) = await _entries(quiet)
        assert (entry.status, entry.cost) == ("settled", COST)
        statuses = sorted(entry.status for entry in await _entries(hostile))
        assert statuses == ["settled", "settled", "unsettled", "unsettled"]
