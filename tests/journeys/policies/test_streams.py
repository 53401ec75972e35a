"""Tests streams with response policies: the client gets only text that a verdict covers, a match ends
the stream with one error record, and the tenant pays for all generated text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.judged_gateway import (
    LIKELY,
    Asked,
    JudgedGateway,
    Opinion,
    assert_denied,
    judge_answer,
    judged_gateway,
)
from tests.support.raw_caller import raw_caller
from tests.support.responses_answers import read_events, respond, types
from tests.support.scripted_gateway import COST, MODEL, chat_body, eventually, read_stream
from tests.support.sdks import openai
from tests.support.upstream import (
    Peer,
    Verb,
    answer,
    chat_records,
    completion,
    hang,
    refuse,
    stream,
)
from tollkeeper.http import sse

_SEGMENT = 20  # characters
_COMMENT = ": keep-alive\n\n"


@pytest.fixture(scope="module")
async def segmenting(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    """Starts a gateway that asks the judge after every 20 characters, and that sends a comment into a
    stream which is silent for 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "_SILENCE_S", 0.02)
        opening = judged_gateway(data_dir, conninfo, judge={"segment_characters": _SEGMENT})
        judged = await opening.__aenter__()
    yield judged
    await opening.__aexit__(None, None, None)


@pytest.fixture
async def segments(segmenting: JudgedGateway) -> JudgedGateway:
    return await segmenting.for_next_test()


@pytest.fixture
async def hurried(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    """Starts a gateway that reads the answer of an abandoned call for only 0.2 seconds."""
    async with judged_gateway(data_dir, conninfo, drain_s=0.2) as judged:
        yield judged


def _pieces(*pieces: str, pause_s: float = 0) -> Verb:
    return stream(chat_records(pieces), pause_s=pause_s)


class Held:
    """A judge that answers wanted questions only after the test has called `decide`."""

    def __init__(
        self, judged: JudgedGateway, wanted: Callable[[Asked], bool] = lambda _: True
    ) -> None:
        self._decided = asyncio.Event()
        self._opinion = 0
        self.asked = asyncio.Event()

        def opinion(asked: Asked) -> Opinion:
            if not wanted(asked):
                return 0
            self.asked.set()
            return self._wait

        judged.judge.opinion = opinion

    @property
    def is_decided(self) -> bool:
        return self._decided.is_set()

    def decide(self, opinion: int) -> None:
        self._opinion = opinion
        self._decided.set()

    async def _wait(self, peer: Peer) -> None:
        await self._decided.wait()
        await judge_answer(self._opinion)(peer)


async def test_a_word_that_is_split_over_pieces_is_seen(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="response")
    judged.model.play(_pieces("a b", "o", "m", "b goes off"))
    found = await judged.chat(stream=True)
    assert_denied(found, policy, "response")
    entry = await judged.scripted.entry_of(found)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)
    assert len(judged.judge.asked) == 1


async def test_what_is_fine_comes_whole(judged: JudgedGateway) -> None:
    await judged.enforce(direction="response")
    judged.model.play(_pieces("all ", "is ", "well"))
    told = read_stream((await judged.chat(stream=True)).text)
    assert (told.text, told.done, told.error) == ("all is well", True, None)


async def test_segments_leave_one_by_one(segments: JudgedGateway) -> None:
    policy = await segments.enforce(direction="response")
    pieces = ("twenty characters ok", " and then a bo", "mb goes off", "!")
    segments.model.play(_pieces(*pieces, pause_s=0.05))
    found = await segments.chat(stream=True)
    assert (found.status_code, found.headers["content-type"]) == (
        200,
        "text/event-stream; charset=utf-8",
    )
    told = read_stream(found.text)
    assert (told.text, told.done) == ("twenty characters ok", False)
    assert told.error is not None
    assert (told.error["type"], told.error["code"]) == ("policy_error", "policy_denied")
    assert policy.id in told.error["message"]
    entry = await segments.scripted.entry_of(found)
    # The gateway stopped the answer, so it counts the pieces that had arrived.
    cost = entry.delivered_pieces(3, "".join(pieces[:3]))
    assert (entry.status, entry.estimated, entry.cost) == ("settled", True, cost)
    (verdict,) = (await segments.entry(found)).verdicts
    assert (verdict.matched, verdict.probability_basis_points) == (True, LIKELY)


async def test_each_segment_is_judged_with_all_before_it(segments: JudgedGateway) -> None:
    """The judge sees a word that is split over two segments before the client gets its second half."""
    await segments.enforce(direction="response")
    segments.model.play(_pieces("twenty characters bo", "mb, and some more text"))
    told = read_stream((await segments.chat(stream=True)).text)
    assert told.text == "twenty characters bo"
    assert told.error is not None
    assert segments.judge.texts[-1] == "twenty characters bomb, and some more text"


async def test_a_caller_without_pieces_is_judged_once(segments: JudgedGateway) -> None:
    await segments.enforce(direction="response")
    segments.say("long enough for several segments of an answer")
    assert (await segments.chat()).status_code == 200
    assert len(segments.judge.asked) == 1


async def test_a_judge_that_fails_in_the_midst_ends_the_stream(segments: JudgedGateway) -> None:
    await segments.enforce(direction="response")
    segments.judge.opinion = lambda asked: refuse(500) if "then" in asked.text else 0
    segments.model.play(_pieces("twenty characters ok", " and then something else"))
    told = read_stream((found := await segments.chat(stream=True)).text)
    assert told.text == "twenty characters ok"
    assert told.error is not None
    assert told.error["code"] == "service_unavailable"
    (verdict,) = (await segments.entry(found)).verdicts
    assert verdict.probability_basis_points is None


@pytest.mark.parametrize("decision", [0, LIKELY])
async def test_nothing_leaves_before_it_is_judged(judged: JudgedGateway, decision: int) -> None:
    policy = await judged.enforce(direction="response")
    held = Held(judged)
    judged.model.play(_pieces("one ", "two"))
    asking = asyncio.create_task(judged.chat(stream=True))
    await asyncio.wait_for(held.asked.wait(), 20)
    done, _ = await asyncio.wait([asking], timeout=0.1)
    assert not done
    held.decide(decision)
    found = await asking
    if decision:
        assert_denied(found, policy, "response")
    else:
        assert read_stream(found.text).text == "one two"


@pytest.mark.parametrize("decision", [0, LIKELY])
async def test_while_an_answer_is_held_back_comments_keep_the_stream(
    segments: JudgedGateway, decision: int
) -> None:
    await segments.enforce(direction="response")
    held = Held(segments)
    segments.model.play(_pieces("one ", "two"))
    body = ""
    async with segments.scripted.gateway.client.stream(
        "POST",
        "/v1/chat/completions",
        json=chat_body(stream=True),
        headers=segments.scripted.tenant.as_customer,
    ) as answering:
        assert (answering.status_code, answering.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
        async for piece in answering.aiter_text():
            body += piece
            assert held.is_decided or body.replace(_COMMENT, "") == ""
            if body.count(_COMMENT) == 3:
                held.decide(decision)
    told = read_stream(body)
    if decision:
        assert (told.chunks, told.done) == ([], False)
        assert told.error is not None
        assert told.error["code"] == "policy_denied"
    else:
        assert (told.text, told.done) == ("one two", True)
    await eventually(lambda: segments.scripted.gateway.services.inference.running == 0)
    assert {entry.status for entry in await segments.scripted.entries()} == {"settled"}


async def test_a_request_that_is_being_judged_starts_no_stream(segments: JudgedGateway) -> None:
    """The denial of a request is a plain 403, however long the verdict took."""
    policy = await segments.enforce(direction="request")
    held = Held(segments)
    asking = asyncio.create_task(segments.chat(stream=True))
    await asyncio.wait_for(held.asked.wait(), 20)
    await asyncio.sleep(0.2)
    held.decide(LIKELY)
    assert_denied(await asking, policy, "request")


async def test_who_watches_holds_nothing_back(judged: JudgedGateway) -> None:
    await judged.publish(direction="response")
    held = Held(judged)
    judged.model.play(_pieces("a b", "omb"))
    found = await judged.chat(stream=True)
    told = read_stream(found.text)
    assert (told.text, told.done) == ("a bomb", True)
    held.decide(LIKELY)
    (verdict,) = (await judged.entry(found)).verdicts
    assert (verdict.matched, verdict.mode) == (True, "monitoring")
    assert judged.judge.texts == ["a bomb"]


async def test_responses_end_with_a_failed_response(segments: JudgedGateway) -> None:
    policy = await segments.enforce(direction="response")
    segments.model.play(_pieces("twenty characters ok", " and then a bomb goes off", "!"))
    found = await respond(segments.scripted, stream=True)
    body = "\n\n".join(part for part in found.text.split("\n\n") if not part.startswith(":"))
    events, done = read_events(body)
    assert not done
    assert types(events)[:2] == ["created", "in_progress"]
    assert types(events).count("failed") == 1
    assert types(events)[-1] == "failed"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["type"]) == ("failed", "policy_error")
    assert policy.id in failed["error"]["message"]
    deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert "".join(deltas) == "twenty characters ok"
    assert (await segments.scripted.entry_of(found)).status == "settled"


@pytest.mark.parametrize("streamed", [False, True])
async def test_responses_that_have_not_begun_are_refused_plainly(
    judged: JudgedGateway, streamed: bool
) -> None:
    policy = await judged.enforce(direction="response")
    judged.model.play(_pieces("a ", "bomb") if streamed else answer(completion("a bomb")))
    found = await respond(judged.scripted, stream=streamed)
    assert_denied(found, policy, "response")
    assert (await judged.scripted.entry_of(found)).cost == COST


async def test_the_sdk_reads_a_response_that_failed_behind_comments(
    segments: JudgedGateway,
) -> None:
    await segments.enforce(direction="response")
    held = Held(segments)
    segments.model.play(_pieces("a ", "bomb"))
    async with (
        openai.AsyncOpenAI(
            api_key=segments.scripted.tenant.project_key,
            base_url=f"{segments.scripted.gateway.base_url}/v1",
            max_retries=0,
        ) as client,
        client.responses.stream(model=MODEL, input="Hello") as events,
    ):
        held.decide(LIKELY)
        seen: list[Any] = [event async for event in events]
    assert [event.type for event in seen] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert isinstance(seen[-1], openai.types.responses.ResponseFailedEvent)


async def test_an_answer_that_breaks_off_is_watched_as_far_as_it_came(
    judged: JudgedGateway,
) -> None:
    await judged.publish(direction="response")
    records = chat_records(["a bomb", "more"])[:2]

    async def breaks_off(peer: Peer) -> None:
        await peer.send_head()
        for record in records:
            await peer.send_chunk(record)
        await asyncio.sleep(0.05)
        peer.reset()

    judged.model.play(breaks_off)
    found = await judged.chat(stream=True)
    assert read_stream(found.text).error is not None
    (verdict,) = (await judged.entry(found)).verdicts
    assert verdict.matched


async def test_a_caller_who_has_gone_leaves_the_verdicts(hurried: JudgedGateway) -> None:
    """The monitoring verdicts on the request and on the answer are recorded."""
    await hurried.publish(direction="both")
    held = Held(hurried)

    async def endless(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(chat_records(["a bomb "])[1])
        await peer.until_left()

    hurried.model.play(endless)
    async with raw_caller(hurried.scripted) as caller:
        await caller.ask(stream=True)
        await caller.head()
        await caller.record()
        caller.leave(abruptly=True)
    await eventually(lambda: hurried.scripted.gateway.services.inference.running == 0)
    held.decide(LIKELY)
    (request_id,) = await hurried.scripted.sql(
        "SELECT id::text FROM reservations WHERE organization_id = %s",
        hurried.scripted.tenant.organization_id,
    )
    entry = await hurried.entry(request_id[0])
    assert sorted((found.direction, found.matched) for found in entry.verdicts) == [
        ("request", True),
        ("response", True),
    ]


async def test_a_caller_who_leaves_while_it_is_judged(hurried: JudgedGateway) -> None:
    """The call is not sent to the backend, and the tenant pays nothing."""
    await hurried.enforce(direction="request")
    dispatched = len(hurried.model.requests)
    hurried.judge.opinion = lambda _: hang()
    async with raw_caller(hurried.scripted) as caller:
        await caller.ask(stream=True)
        await eventually(lambda: bool(hurried.judge.asked))
        caller.leave(abruptly=True)
    await eventually(lambda: hurried.scripted.gateway.services.inference.running == 0)
    assert len(hurried.model.requests) == dispatched
    (found,) = await hurried.scripted.entries()
    assert found.status == "released"
