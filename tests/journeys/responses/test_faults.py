"""Tests faults during calls over Responses: the client's error, and the correct ledger entries."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.responses_answers import BARE, read_events, records, respond, retell, types
from tests.support.scripted_gateway import (
    COST,
    MODEL,
    ScriptedGateway,
    eventually,
    scripted_gateway,
)
from tests.support.upstream import (
    DONE,
    Peer,
    Verb,
    chat,
    chunk,
    drip,
    end_after,
    hang,
    refuse,
    reset_after,
    reset_before_headers,
    sse,
    stream,
    usage_chunk,
)
from tollkeeper.core.estimate import estimate_tokens


@pytest.fixture
async def scripted(shared_scripted: ScriptedGateway) -> ScriptedGateway:
    """Makes a successful call first, because three failures in a row would eject the replica."""
    shared_scripted.upstream.play(chat())
    assert (await respond(shared_scripted)).status_code == 200
    return await shared_scripted.with_tenant()


@pytest.fixture
async def impatient(
    data_dir: Path, conninfo: str, shared_scripted: ScriptedGateway
) -> AsyncIterator[ScriptedGateway]:
    """Starts a gateway with a deadline of one second for each call."""
    limits = {"inference_deadline_s": 1}
    async with scripted_gateway(
        data_dir, conninfo, shared_scripted.upstream, limits=limits
    ) as running:
        yield running


async def failed_stream(scripted: ScriptedGateway, **fields: Any) -> list[dict[str, Any]]:
    """Makes a call whose stream fails, and returns its events. Checks that the stream ends with a
    single `response.failed` and without `[DONE]`."""
    answer = await respond(scripted, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    found, done = read_events(answer.text)
    assert not done
    assert types(found).count("failed") == 1
    failed = found[-1]["response"]
    assert found[-1]["type"] == "response.failed"
    assert failed["status"] == "failed"
    assert set(failed["error"]) == {"code", "message", "type", "param"}
    assert failed["error"]["code"] == "server_error"
    return found


@pytest.mark.parametrize("streamed", [False, True])
async def test_money_is_settled_as_for_chat(scripted: ScriptedGateway, streamed: bool) -> None:
    answer = await respond(scripted, stream=streamed)
    assert answer.status_code == 200
    assert (await scripted.balance())["settled"] == COST
    entry = await scripted.entry_of(answer)
    assert (entry.status, entry.choices, entry.output_tokens_max) == ("settled", 1, 1024)
    assert not entry.estimated


async def test_terminal_event_comes_after_the_settlement(scripted: ScriptedGateway) -> None:
    """When the client has read the final event, the ledger contains the cost."""
    body = {"model": MODEL, "input": "Hello", "stream": True}
    client = scripted.gateway.client
    async with client.stream(
        "POST", "/v1/responses", json=body, headers=scripted.tenant.as_customer
    ) as answer:
        async for line in answer.aiter_lines():
            if line == "event: response.completed":
                break
        entry = await scripted.entry(answer.headers["x-request-id"])
    assert entry is not None
    assert entry.status == "settled"


@pytest.mark.parametrize(
    ("verb", "status", "code", "books"),
    [
        (reset_before_headers(), 502, "provider_unavailable", "unsettled"),
        (refuse(400, "bad prompt"), 422, "unprocessable", "released"),
        (refuse(422), 422, "unprocessable", "released"),
        (refuse(429), 429, "rate_limit_exceeded", "released"),
        (refuse(500), 502, "provider_unavailable", "released"),
    ],
    ids=["reset", "400", "422", "429", "500"],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_failure_before_the_start_is_a_plain_status(
    scripted: ScriptedGateway, verb: Verb, status: int, code: str, books: str, streamed: bool
) -> None:
    scripted.upstream.play(verb)
    answer = await respond(scripted, stream=streamed)
    assert_error(answer, status, code)
    assert answer.headers["content-type"] == "application/json"
    entry = await scripted.entry_of(answer)
    assert (entry.status, entry.cost) == (books, 0)
    await scripted.balance()


@pytest.mark.parametrize("streamed", [False, True])
async def test_deadline_before_the_start(impatient: ScriptedGateway, streamed: bool) -> None:
    impatient.upstream.play(hang())
    answer = await respond(impatient, stream=streamed)
    assert_error(answer, 504, "timeout")
    assert (await impatient.entry_of(answer)).status == "unsettled"


async def test_error_record_before_the_start_is_a_plain_status(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(stream([sse({"error": {"message": "no", "code": 400}})]))
    answer = await respond(scripted, stream=True)
    assert_error(answer, 422, "unprocessable")
    assert (await scripted.entry_of(answer)).status == "released"


@pytest.mark.parametrize("pieces", [1, 2, 7])
async def test_reset_after_some_pieces(scripted: ScriptedGateway, pieces: int) -> None:
    scripted.upstream.play(reset_after(pieces))
    found = await failed_stream(scripted, model=BARE)
    said = "".join(f"{number} " for number in range(pieces))
    assert retell(found).texts == {(0, 0): said}
    # The result contains the text that arrived before the reset.
    [item] = found[-1]["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", said)
    [entry] = await scripted.entries()
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == entry.delivered_pieces(pieces)
    await scripted.balance()


@pytest.mark.parametrize("finished", [False, True])
async def test_end_without_done(scripted: ScriptedGateway, finished: bool) -> None:
    scripted.upstream.play(end_after(3, finished=finished))
    found = await failed_stream(scripted, model=BARE)
    assert retell(found).texts == {(0, 0): "0 1 2 "}
    [entry] = await scripted.entries()
    assert entry.cost == entry.delivered_pieces(3)


async def test_deadline_in_the_middle(impatient: ScriptedGateway) -> None:
    impatient.upstream.play(drip(b": x\n" * 1000, before=sse(chunk("Hel")), pause_s=0.05))
    found = await failed_stream(impatient)
    assert found[-1]["response"]["error"]["type"] == "timeout_error"
    assert retell(found).texts == {(0, 0): "Hel"}
    [entry] = await impatient.entries()
    assert entry.cost == entry.delivered_pieces(1, "Hel")


async def test_error_record_in_the_middle(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(stream([sse(chunk("Hel")), sse({"error": {"message": "broken"}})]))
    found = await failed_stream(scripted)
    assert "broken" not in found[-1]["response"]["error"]["message"]


async def test_call_that_goes_on_after_its_end(scripted: ScriptedGateway) -> None:
    def piece(index: int, **function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]}

    scripted.upstream.play(
        stream(
            records(
                [
                    piece(0, name="look", arguments="{}"),
                    piece(1, name="leap", arguments="{}"),
                    piece(0, arguments="{}"),
                ]
            )
        )
    )
    found = await failed_stream(scripted)
    assert retell(found).arguments == {0: "{}", 1: "{}"}


async def test_stream_without_usage_is_complete_and_estimated(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(
        stream([sse(chunk("Hel")), sse(chunk("lo")), sse(chunk(finish="stop")), DONE])
    )
    answer = await respond(scripted, model=BARE, stream=True)
    found, done = read_events(answer.text)
    assert done
    usage = found[-1]["response"]["usage"]
    assert usage["output_tokens"] == estimate_tokens("Hello") == 3
    entry = await scripted.entry_of(answer)
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == entry.delivered_pieces(2, "Hello")


async def test_no_credit(shared_scripted: ScriptedGateway) -> None:
    poor = await shared_scripted.with_tenant(credit=0)
    for streamed in (False, True):
        assert_error(await respond(poor, stream=streamed), 402, "payment_required")


async def test_caller_leaves_in_the_middle(scripted: ScriptedGateway) -> None:
    """The gateway reads the rest of the answer for its usage, and charges the whole answer."""
    pieces = [sse(chunk(f"{number} ")) for number in range(10)]
    whole = [*pieces, sse(chunk(finish="stop")), sse(usage_chunk()), DONE]
    left = asyncio.Event()

    async def goes_on(peer: Peer) -> None:
        await peer.send_head()
        for record in whole[:3]:
            await peer.send_chunk(record)
        await left.wait()
        for record in whole[3:]:
            await peer.send_chunk(record)
        await peer.end_chunks()

    scripted.upstream.play(goes_on)
    body = {"model": MODEL, "input": "Hello", "stream": True}
    async with scripted.gateway.client.stream(
        "POST", "/v1/responses", json=body, headers=scripted.tenant.as_customer
    ) as answer:
        async for line in answer.aiter_lines():
            if line == "event: response.output_text.delta":
                break
    left.set()
    await eventually(lambda: scripted.gateway.services.inference.running == 0)
    assert (await scripted.balance())["settled"] == COST


async def test_nothing_is_left_behind(scripted: ScriptedGateway) -> None:
    async with scripted.leaving_nothing():
        for verb in (reset_after(2), end_after(2)):
            scripted.upstream.play(verb)
            await respond(scripted, stream=True)
