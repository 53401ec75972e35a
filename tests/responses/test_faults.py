"""What goes wrong around Responses, and that the books are right whatever it is."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway import assert_error
from tests.inference.lab import COST, MODEL, Lab, eventually, laboratory
from tests.responses.answers import read_events, records, respond, retell, types
from tests.upstream import (
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


@pytest.fixture
async def lab(rig: Lab) -> Lab:
    """After an answer that went well: three failures in a row would rest the upstream."""
    rig.upstream.play(chat())
    assert (await respond(rig)).status_code == 200
    return await rig.with_tenant()


@pytest.fixture
async def impatient(data_dir: Path, conninfo: str, rig: Lab) -> AsyncIterator[Lab]:
    """A gateway that does not wait for long."""
    limits = {"inference_deadline_s": 1}
    async with laboratory(data_dir, conninfo, rig.upstream, limits=limits) as running:
        yield running


async def failed_stream(lab: Lab, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream that broke: one `response.failed` at its end, and no `[DONE]`."""
    answer = await respond(lab, stream=True, **fields)
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
async def test_money_is_settled_as_for_chat(lab: Lab, streamed: bool) -> None:
    answer = await respond(lab, stream=streamed)
    assert answer.status_code == 200
    assert (await lab.balance())["settled"] == COST
    entry = await lab.entry_of(answer)
    assert (entry.status, entry.choices, entry.output_tokens_max) == ("settled", 1, 1024)
    assert not entry.estimated


async def test_terminal_event_comes_after_the_settlement(lab: Lab) -> None:
    """Whoever has read the end finds the cost in the books."""
    body = {"model": MODEL, "input": "Hello", "stream": True}
    client = lab.gateway.client
    async with client.stream(
        "POST", "/v1/responses", json=body, headers=lab.tenant.as_customer
    ) as answer:
        async for line in answer.aiter_lines():
            if line == "event: response.completed":
                break
        entry = await lab.entry(answer.headers["x-request-id"])
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
    lab: Lab, verb: Verb, status: int, code: str, books: str, streamed: bool
) -> None:
    lab.upstream.play(verb)
    answer = await respond(lab, stream=streamed)
    assert_error(answer, status, code)
    assert answer.headers["content-type"] == "application/json"
    entry = await lab.entry_of(answer)
    assert (entry.status, entry.cost) == (books, 0)
    await lab.balance()


@pytest.mark.parametrize("streamed", [False, True])
async def test_deadline_before_the_start(impatient: Lab, streamed: bool) -> None:
    impatient.upstream.play(hang())
    answer = await respond(impatient, stream=streamed)
    assert_error(answer, 504, "timeout")
    assert (await impatient.entry_of(answer)).status == "unsettled"


async def test_error_record_before_the_start_is_a_plain_status(lab: Lab) -> None:
    lab.upstream.play(stream([sse({"error": {"message": "no", "code": 400}})]))
    answer = await respond(lab, stream=True)
    assert_error(answer, 422, "unprocessable")
    assert (await lab.entry_of(answer)).status == "released"


@pytest.mark.parametrize("pieces", [1, 2, 7])
async def test_reset_after_some_pieces(lab: Lab, pieces: int) -> None:
    lab.upstream.play(reset_after(pieces))
    found = await failed_stream(lab)
    said = "".join(f"{number} " for number in range(pieces))
    assert retell(found).texts == {(0, 0): said}
    # What was said is in the result, as far as it came.
    [item] = found[-1]["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", said)
    [entry] = await lab.entries()
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == entry.delivered(pieces)
    await lab.balance()


@pytest.mark.parametrize("finished", [False, True])
async def test_end_without_done(lab: Lab, finished: bool) -> None:
    lab.upstream.play(end_after(3, finished=finished))
    found = await failed_stream(lab)
    assert retell(found).texts == {(0, 0): "0 1 2 "}
    [entry] = await lab.entries()
    assert entry.cost == entry.delivered(3)


async def test_deadline_in_the_middle(impatient: Lab) -> None:
    impatient.upstream.play(drip(b": x\n" * 1000, before=sse(chunk("Hel")), pause_s=0.05))
    found = await failed_stream(impatient)
    assert found[-1]["response"]["error"]["type"] == "timeout_error"
    assert retell(found).texts == {(0, 0): "Hel"}
    [entry] = await impatient.entries()
    assert entry.cost == entry.delivered(1)


async def test_error_record_in_the_middle(lab: Lab) -> None:
    lab.upstream.play(stream([sse(chunk("Hel")), sse({"error": {"message": "broken"}})]))
    found = await failed_stream(lab)
    assert "broken" not in found[-1]["response"]["error"]["message"]


async def test_call_that_goes_on_after_its_end(lab: Lab) -> None:
    def piece(index: int, **function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]}

    lab.upstream.play(
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
    found = await failed_stream(lab)
    assert retell(found).arguments == {0: "{}", 1: "{}"}


async def test_stream_without_usage_is_complete_and_estimated(lab: Lab) -> None:
    lab.upstream.play(
        stream([sse(chunk("Hel")), sse(chunk("lo")), sse(chunk(finish="stop")), DONE])
    )
    answer = await respond(lab, stream=True)
    found, done = read_events(answer.text)
    assert done
    usage = found[-1]["response"]["usage"]
    assert usage["output_tokens"] == 2
    entry = await lab.entry_of(answer)
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == entry.delivered(2)


async def test_no_credit(rig: Lab) -> None:
    poor = await rig.with_tenant(credit=0)
    for streamed in (False, True):
        assert_error(await respond(poor, stream=streamed), 402, "payment_required")


async def test_caller_leaves_in_the_middle(lab: Lab) -> None:
    """The rest is read for its usage, and paid."""
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

    lab.upstream.play(goes_on)
    body = {"model": MODEL, "input": "Hello", "stream": True}
    async with lab.gateway.client.stream(
        "POST", "/v1/responses", json=body, headers=lab.tenant.as_customer
    ) as answer:
        async for line in answer.aiter_lines():
            if line == "event: response.output_text.delta":
                break
    left.set()
    await eventually(lambda: lab.gateway.services.inference.running == 0)
    assert (await lab.balance())["settled"] == COST


async def test_nothing_is_left_behind(lab: Lab) -> None:
    async with lab.leaving_nothing():
        for verb in (reset_after(2), end_after(2)):
            lab.upstream.play(verb)
            await respond(lab, stream=True)
