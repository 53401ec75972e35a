"""Tests the ledger entry of a call that failed after it was sent, and whether the gateway may ask
another replica. Both replicas of a backend play every case, for each wire."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.raw_caller import raw_caller
from tests.support.scripted_gateway import COST, Entry, eventually, read_stream
from tests.support.two_replicas import TwoReplicas, assert_released, assert_unsettled, for_each_wire
from tests.support.upstream import (
    DONE,
    JSON_TYPE,
    SSE_TYPE,
    Peer,
    Verb,
    answer,
    chunk,
    completion,
    fat_line,
    hang,
    refuse,
    reset_after,
    sse,
    stream,
    usage_chunk,
)
from tests.support.upstream_responses import BEGUN, text_then
from tests.support.upstream_wire import RESPONSE_USAGE, message_item, response, typed

WIRES = ("chat", "responses")
BOTH_WIRES = pytest.mark.parametrize("wire", WIRES)
BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[dict[str, TwoReplicas]]:
    async with for_each_wire(data_dir, conninfo) as found:
        yield found


@pytest.fixture(scope="module")
async def shared_hasty(data_dir: Path, conninfo: str) -> AsyncIterator[dict[str, TwoReplicas]]:
    """Starts gateways with a short deadline and drain time, for calls that reach them."""
    limits = {"inference_deadline_s": 3}
    async with for_each_wire(data_dir, conninfo, limits=limits, drain_s=0.3) as found:
        yield found


@pytest.fixture
async def two(shared: dict[str, TwoReplicas], wire: str) -> TwoReplicas:
    return await shared[wire].with_tenant()


@pytest.fixture
async def hasty(shared_hasty: dict[str, TwoReplicas], wire: str) -> TwoReplicas:
    return await shared_hasty[wire].with_tenant()


# Answers with status 200 that cannot be read.


async def _half_a_body(peer: Peer) -> None:
    await peer.send_head(content_type=JSON_TYPE, length=1000)
    await peer.send(b'{"choices":')
    peer.close()


UNREADABLE: dict[str, Verb] = {
    "cut after the head": reset_after(content_type=JSON_TYPE),
    "cut in the body": _half_a_body,
    "too large": fat_line(1 << 20, content_type=JSON_TYPE),
    "half JSON": answer(b'{"choices":['),
    "no UTF-8": answer(b'{"choices":"\xff"}'),
    "no object": answer(b"[]"),
    "no answer in it": answer(b"{}"),
    "compressed": answer(headers=[("content-encoding", "gzip")]),
    "HTML": answer(b"<html>", content_type="text/html"),
    "a stream": answer(content_type=SSE_TYPE),
    "no content type": answer(content_type=None),
}


@BOTH_WIRES
@pytest.mark.parametrize("row", UNREADABLE)
async def test_a_json_answer_that_cannot_be_read_may_have_cost(two: TwoReplicas, row: str) -> None:
    found, asked = await two.fail(UNREADABLE[row])
    assert_error(found, 502, "provider_unavailable")
    await assert_unsettled(two, found, asked)


async def _slow_json(peer: Peer) -> None:
    await peer.send_head(content_type=JSON_TYPE, length=1000)
    await peer.send(b'{"choices":')
    await peer.until_left()


@BOTH_WIRES
async def test_a_json_answer_until_the_deadline_may_have_cost(hasty: TwoReplicas) -> None:
    found, asked = await hasty.fail(_slow_json)
    assert_error(found, 504, "timeout")
    await assert_unsettled(hasty, found, asked)


READABLE_USAGE: dict[str, dict[str, Any]] = {
    "chat": {**completion(), "choices": "none"},
    "responses": {**response(), "output": "none"},
}


@BOTH_WIRES
async def test_what_a_malformed_answer_tells_of_its_usage_is_charged(
    two: TwoReplicas, wire: str
) -> None:
    found, asked = await two.fail(answer(READABLE_USAGE[wire]))
    assert_error(found, 502, "provider_unavailable")
    assert asked == 1
    assert found.headers["x-should-retry"] == "false"
    entry = await two.scripted.entry_of(found)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)


EMPTY_STREAMS: dict[str, Verb] = {
    "cut after the head": reset_after(),
    "an end at once": stream([]),
    "no JSON": stream([b"data: rubbish\n\n"]),
    "compressed": answer(content_type=SSE_TYPE, headers=[("content-encoding", "gzip")]),
    "JSON": answer(),
}


@BOTH_WIRES
@pytest.mark.parametrize("row", EMPTY_STREAMS)
async def test_a_stream_of_which_nothing_came_may_have_cost(two: TwoReplicas, row: str) -> None:
    """The backend may have processed the prompt or generated hidden reasoning before the cut."""
    found, asked = await two.fail(EMPTY_STREAMS[row], stream=True)
    assert_error(found, 502, "provider_unavailable")
    await assert_unsettled(two, found, asked)


# Error statuses.


@BOTH
@BOTH_WIRES
@pytest.mark.parametrize(
    "status", [202, 204, 408, 424, 460, 499, 502, 504, 507, 520, 522, 524, 599]
)
async def test_nobody_knows_whether_the_call_ran(
    two: TwoReplicas, status: int, streamed: bool
) -> None:
    body = b"" if status == 204 else b"<html>"
    verb = answer(body, status=status, content_type="text/html")
    found, asked = await two.fail(verb, stream=streamed)
    assert_error(found, 502, "provider_unavailable")
    await assert_unsettled(two, found, asked)


@BOTH
@BOTH_WIRES
@pytest.mark.parametrize(
    "status", [307, 401, 402, 403, 404, 405, 413, 418, 429, 498, 500, 501, 503, 529]
)
async def test_a_refusal_is_not_charged(two: TwoReplicas, status: int, streamed: bool) -> None:
    found, asked = await two.fail(refuse(status), stream=streamed)
    assert found.status_code == (429 if status == 429 else 502)
    await assert_released(two, found, asked)


@BOTH
@BOTH_WIRES
@pytest.mark.parametrize("status", [400, 422])
async def test_what_is_wrong_with_a_request_is_wrong_everywhere(
    two: TwoReplicas, status: int, streamed: bool
) -> None:
    found, asked = await two.fail(refuse(status), stream=streamed)
    assert_error(found, 422, "unprocessable")
    assert asked == 1
    assert (await two.scripted.entry_of(found)).status == "released"


@BOTH
@BOTH_WIRES
@pytest.mark.parametrize(
    ("code", "books"), [(500, "released"), (503, "released"), (504, "unsettled")]
)
async def test_an_error_object_in_a_200_before_any_output(
    two: TwoReplicas, code: int, books: str, streamed: bool
) -> None:
    """The gateway treats the error as if the backend had answered with the status in it."""
    error = {"error": {"message": "no", "code": code}}
    verb = stream([sse(error)]) if streamed else answer(error)
    found, asked = await two.fail(verb, stream=streamed)
    assert_error(found, 502, "provider_unavailable")
    await (assert_released if books == "released" else assert_unsettled)(two, found, asked)


# JSON bodies with both output and an error.
FAILED_WITH_OUTPUT: dict[str, dict[str, Any]] = {
    "chat": {**completion("Hel"), "error": {"message": "no", "code": 500}},
    "responses": {**response(message_item("Hel"), status="failed"), "error": {"code": "x"}},
}
# JSON bodies with an error and usage, but without output.
FAILED_WITH_USAGE: dict[str, dict[str, Any]] = {
    "chat": {**completion(), "choices": [], "error": {"message": "no", "code": 500}},
    "responses": {**response(status="failed"), "output": [], "error": {"code": "server_error"}},
}


@BOTH_WIRES
async def test_an_error_object_beside_output_is_charged(two: TwoReplicas, wire: str) -> None:
    without_usage = {**FAILED_WITH_OUTPUT[wire], "usage": None}
    for body, estimated in ((FAILED_WITH_OUTPUT[wire], False), (without_usage, True)):
        found, asked = await two.fail(answer(body))
        assert_error(found, 502, "provider_unavailable")
        assert asked == 1
        assert found.headers["x-should-retry"] == "false"
        entry = await two.scripted.entry_of(found)
        cost = entry.delivered_pieces(1, "Hello") if estimated else COST
        assert (entry.status, entry.cost, entry.estimated) == ("settled", cost, estimated)


@BOTH
@BOTH_WIRES
async def test_an_error_object_that_tells_its_usage_is_charged(
    two: TwoReplicas, wire: str, streamed: bool
) -> None:
    body = FAILED_WITH_USAGE[wire]
    records = {
        "chat": [sse({**usage_chunk(), "error": {"code": 500, "message": "no"}}), DONE],
        "responses": [*BEGUN, typed("response.failed", response=body)],
    }
    verb = stream(records[wire]) if streamed else answer(body)
    found, asked = await two.fail(verb, stream=streamed)
    assert_error(found, 502, "provider_unavailable")
    assert asked == 1
    entry = await two.scripted.entry_of(found)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)


@BOTH_WIRES
async def test_an_error_record_after_output_is_charged(two: TwoReplicas, wire: str) -> None:
    error = {"code": 500, "message": "no"}
    failed = {**response(status="failed", usage=RESPONSE_USAGE), "output": [], "error": error}
    last = chunk("", finish="error", error=error, usage=usage_chunk()["usage"])
    cases = {
        "chat": [
            ([sse(chunk("0 ")), sse(chunk("1 ")), sse({"error": error})], True),
            ([sse(chunk("0 ")), sse(chunk("1 ")), sse(last), DONE], False),
        ],
        "responses": [
            (text_then(typed("error", **error)), True),
            (text_then(typed("response.failed", response=failed)), False),
        ],
    }
    for records, estimated in cases[wire]:
        found, asked = await two.fail(stream(records), stream=True)
        assert asked == 1
        assert read_stream(found.text).error is not None
        entry = await two.scripted.entry_of(found)
        cost = entry.delivered_pieces(2) if estimated else COST
        assert (entry.status, entry.cost, entry.estimated) == ("settled", cost, estimated)


async def test_an_error_record_that_only_ends_the_choice_is_a_refusal(
    shared: dict[str, TwoReplicas],
) -> None:
    two = await shared["chat"].with_tenant()
    last = chunk("", finish="error", error={"code": 500, "message": "no"})
    whole = {**completion(""), "usage": None, "error": {"code": 500, "message": "no"}}
    found, asked = await two.fail(stream([sse(last), DONE]), stream=True)
    await assert_released(two, found, asked)
    found, asked = await two.fail(answer(whole))
    await assert_released(two, found, asked)


# Clients that leave.

SILENT: dict[str, Verb] = {"before its head": hang(), "in its body": _slow_json}


@BOTH_WIRES
@pytest.mark.parametrize("row", SILENT)
async def test_a_json_answer_that_its_caller_left_may_have_cost(
    hasty: TwoReplicas, row: str
) -> None:
    """The drain time has passed, and it is unknown how much of the answer the backend has generated."""
    before = hasty.calls
    hasty.play(SILENT[row])
    async with raw_caller(hasty.scripted) as caller:
        await caller.ask()
        await eventually(lambda: hasty.under_way == 1)
        caller.leave(abruptly=False)
        entry = await hasty.entry_after_the_caller_left()
    assert (entry.status, entry.cost) == ("unsettled", 0)
    assert entry.reason == "The client disconnected."
    assert hasty.calls == before + 1


async def leave_before(two: TwoReplicas, verb: Verb) -> Entry:
    """Lets a client leave and then the backend play `verb`. Returns the ledger entry of the call."""
    left = asyncio.Event()

    async def late(peer: Peer) -> None:
        await left.wait()
        await verb(peer)

    two.play(late)
    async with raw_caller(two.scripted) as caller:
        await caller.ask()
        await eventually(lambda: two.under_way == 1)
        caller.leave(abruptly=True)
        await asyncio.sleep(0.05)
        left.set()
    return await two.entry_after_the_caller_left()


@BOTH_WIRES
async def test_what_is_reported_within_the_drain_is_charged(two: TwoReplicas, wire: str) -> None:
    """The usage is charged even if the answer itself cannot be read."""
    entry = await leave_before(two, answer(READABLE_USAGE[wire]))
    assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)


@BOTH_WIRES
async def test_a_refusal_within_the_drain_is_not_charged(two: TwoReplicas) -> None:
    assert (await leave_before(two, refuse(400))).status == "released"


@BOTH_WIRES
async def test_a_cut_within_the_drain_may_have_cost(two: TwoReplicas) -> None:
    entry = await leave_before(two, reset_after(content_type=JSON_TYPE))
    assert (entry.status, entry.cost) == ("unsettled", 0)
