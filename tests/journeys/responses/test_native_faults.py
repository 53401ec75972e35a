"""Tests faults of a backend that uses Responses: the client's error, and the tenant's charge."""

import asyncio

import pytest

from tests.journeys.responses.native import BOTH, PROTOCOLS, ask, said
from tests.support.gateway import assert_error
from tests.support.responses_answers import BARE, read_events
from tests.support.scripted_gateway import COST, ScriptedGateway, read_stream
from tests.support.upstream import DONE, Peer, answer, refuse, reset_before_headers, stream
from tests.support.upstream_responses import BEGUN, text_then
from tests.support.upstream_responses import respond as responding
from tests.support.upstream_wire import RESPONSE_USAGE, response, typed

FAILED = {**response(status="failed"), "output": [], "error": {"code": "server_error"}}


@BOTH
@PROTOCOLS
@pytest.mark.parametrize(
    ("code", "status", "word"),
    [
        ("server_error", 502, "provider_unavailable"),
        ("rate_limit_exceeded", 429, "rate_limit_exceeded"),
        ("invalid_prompt", 422, "unprocessable"),
    ],
)
async def test_a_failure_before_output_is_a_status(
    native: ScriptedGateway, protocol: str, streamed: bool, code: str, status: int, word: str
) -> None:
    failed = {**FAILED, "usage": None, "error": {"code": code, "message": "no"}}

    async def verb(peer: Peer) -> None:
        records = [*BEGUN, typed("response.failed", response=failed)]
        await (stream(records) if peer.request.json["stream"] else answer(failed))(peer)

    native.upstream.play(verb)
    found = await ask(native, protocol, stream=streamed)
    assert_error(found, status, word)
    assert (await native.entry_of(found)).status == "released"


@BOTH
@PROTOCOLS
async def test_usage_of_a_failure_is_charged(
    native: ScriptedGateway, protocol: str, streamed: bool
) -> None:
    async def verb(peer: Peer) -> None:
        records = [*BEGUN, typed("response.failed", response=FAILED)]
        await (stream(records) if peer.request.json["stream"] else answer(FAILED))(peer)

    native.upstream.play(verb)
    found = await ask(native, protocol, stream=streamed)
    assert found.status_code == 502, found.text
    entry = await native.entry_of(found)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)


@PROTOCOLS
async def test_a_failure_in_the_middle_charges_what_was_delivered(
    native: ScriptedGateway, protocol: str
) -> None:
    unused = {**FAILED, "usage": None}
    for end in (b"", typed("response.failed", response=unused), b"data: rubbish\n\n", DONE):
        native.upstream.play(stream(text_then(*([end] if end else []))))
        found = await ask(native, protocol, model=BARE, stream=True)
        assert found.status_code == 200
        if protocol == "chat":
            told = read_stream(found.text)
            assert (told.text, told.done) == ("0 1 ", False)
            assert told.error is not None
        else:
            events, done = read_events(found.text)
            assert not done
            assert events[-1]["type"] == "response.failed"
        entry = await native.entry_of(found)
        assert (entry.status, entry.estimated) == ("settled", True)
        assert entry.cost == entry.delivered_pieces(2)
        await native.works()


async def test_usage_of_a_failure_in_the_middle(native: ScriptedGateway) -> None:
    native.upstream.play(stream(text_then(typed("response.failed", response=FAILED))))
    found = await native.chat(stream=True)
    assert read_stream(found.text).error is not None
    entry = await native.entry_of(found)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)


@BOTH
async def test_a_completion_that_is_refused_leaves_the_charge_of_the_others_exact(
    native: ScriptedGateway, streamed: bool
) -> None:
    """Each of three completions is a separate call. One gets 429 while the others are being written."""

    async def late(peer: Peer) -> None:
        await asyncio.sleep(0.3)
        await responding()(peer)

    native.upstream.play(late, refuse(429), late)
    found = await native.chat(n=3, stream=streamed)
    if streamed:
        told = read_stream(found.text)
        assert told.text.count("lo") == 2
        assert told.error is not None
        assert told.error["code"] == "rate_limit_exceeded"
    else:
        assert_error(found, 429, "rate_limit_exceeded")
        assert found.headers["x-should-retry"] == "false"
    entry = await native.entry_of(found)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", 2 * COST, False)


async def test_a_reset_before_the_answer_leaves_a_doubt(native: ScriptedGateway) -> None:
    native.upstream.play(reset_before_headers())
    found = await native.chat()
    assert found.status_code == 502
    assert (await native.entry_of(found)).status == "unsettled"


@BOTH
async def test_absurd_and_missing_usage(native: ScriptedGateway, streamed: bool) -> None:
    absurd = {**RESPONSE_USAGE, "output_tokens": -3}
    for usage in (None, absurd, {"total_tokens": 1}):
        native.upstream.play(responding(usage=usage))
        found = await native.chat(model=BARE, stream=streamed)
        assert said(found, "chat", streamed=streamed) == "Hello"
        entry = await native.entry_of(found)
        if usage is absurd:
            assert entry.status == "unsettled"
            continue
        assert (entry.status, entry.estimated) == ("settled", True)
        assert entry.cost == entry.delivered_pieces(2 if streamed else 1, "Hello")


async def test_nothing_is_left(native: ScriptedGateway) -> None:
    async with native.leaving_nothing():
        native.upstream.play(stream(text_then()))
        assert read_stream((await native.chat(stream=True)).text).error is not None
