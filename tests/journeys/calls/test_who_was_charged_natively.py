"""Tests the ledger entry of a call over a native wire that failed after it was sent, and whether the
gateway may ask another replica."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import upstream_converse as converse
from tests.support import upstream_gemini as gemini
from tests.support import upstream_messages as messages
from tests.support.gateway import assert_error
from tests.support.scripted_gateway import COMPLETION_PRICE, PROMPT_PRICE, Entry, read_stream
from tests.support.two_replicas import TwoReplicas, assert_released, assert_unsettled, for_each_wire
from tests.support.upstream import JSON_TYPE, SSE_TYPE, Peer, Verb, answer, refuse, stream
from tollkeeper.core.estimate import estimate_tokens


@dataclass(frozen=True)
class Faults:
    """The faulty answers of a provider, in its own protocol."""

    stream_type: str
    # `records` returns a complete answer. `said` returns the text "0 1 " and then its arguments.
    records: Callable[[], list[bytes]]
    said: Callable[..., list[bytes]]
    # The prompt tokens that a stream reports before its output. None: it reports them at its end.
    told_input: int | None
    # Error records: the server is busy, or it stopped waiting for the model.
    busy: Callable[[], bytes]
    timed_out: Callable[[], bytes]
    # A record that the gateway cannot decode.
    rubbish: bytes
    # An answer of which only the usage can be decoded, and an answer with output and an error.
    readable_usage: dict[str, Any]
    failed_with_output: dict[str, Any]

    def stream(self, *records: bytes) -> Verb:
        return stream(records, content_type=self.stream_type)

    def cut_after(self, *records: bytes) -> Verb:
        """Returns a verb that sends these records and then resets the connection."""

        async def verb(peer: Peer) -> None:
            await peer.send_head(content_type=self.stream_type)
            for record in records:
                await peer.send_chunk(record)
            # A reset discards data that the gateway has not read, so give it time to read.
            await asyncio.sleep(0.05)
            peer.reset()

        return verb

    def delivered(self, entry: Entry) -> int:
        """Returns the cost of the text "0 1 " by the gateway's own count."""
        known = entry.prompt_tokens if self.told_input is None else self.told_input
        return known * PROMPT_PRICE + max(2, estimate_tokens("0 1 ")) * COMPLETION_PRICE


# The cost of the usage that a complete answer reports: 12 prompt and 5 completion tokens.
_REPORTED = 12 * PROMPT_PRICE + 5 * COMPLETION_PRICE
_NO = {"message": "no", "code": 500}
_MESSAGES = Faults(
    stream_type=SSE_TYPE,
    records=messages.message_records,
    said=messages.text_then,
    told_input=12,
    busy=lambda: messages.error_record("overloaded_error"),
    timed_out=lambda: messages.error_record("timeout_error"),
    rubbish=b"data: rubbish\n\n",
    readable_usage={**messages.whole_message(), "content": "none"},
    failed_with_output={**messages.whole_message(), "error": _NO},
)
FAULTS = {
    "messages": _MESSAGES,
    "gemini": Faults(
        stream_type=SSE_TYPE,
        records=gemini.answer_records,
        said=gemini.text_then,
        told_input=12,
        busy=lambda: gemini.record(gemini.error_body(503, "UNAVAILABLE")),
        timed_out=lambda: gemini.record(gemini.error_body(504, "DEADLINE_EXCEEDED")),
        rubbish=b"data: rubbish\n\n",
        readable_usage={**gemini.whole(gemini.text_part()), "candidates": "none"},
        failed_with_output={**gemini.whole(gemini.text_part()), "error": _NO},
    ),
    "converse": Faults(
        stream_type=converse.FRAMES_TYPE,
        records=converse.answer_frames,
        said=converse.text_then,
        told_input=None,
        busy=lambda: converse.exception("serviceUnavailableException"),
        timed_out=lambda: converse.exception("modelTimeoutException"),
        rubbish=converse.frame(b"rubbish", (":event-type", "contentBlockDelta")),
        readable_usage={**converse.whole_answer(), "output": "none"},
        failed_with_output={**converse.whole_answer(), "error": _NO},
    ),
    "bedrock_messages": Faults(
        stream_type=converse.FRAMES_TYPE,
        records=lambda: converse.chunk_frames(messages.message_records()),
        said=lambda *frames: [*converse.chunk_frames(messages.text_then()), *frames],
        told_input=12,
        busy=lambda: converse.exception("serviceUnavailableException"),
        timed_out=lambda: converse.exception("modelTimeoutException"),
        rubbish=converse.event("chunk", bytes="!"),
        readable_usage=_MESSAGES.readable_usage,
        failed_with_output=_MESSAGES.failed_with_output,
    ),
}
EACH = pytest.mark.parametrize("wire", FAULTS)
BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[dict[str, TwoReplicas]]:
    async with for_each_wire(data_dir, conninfo, FAULTS) as found:
        yield found


@pytest.fixture
async def two(shared: dict[str, TwoReplicas], wire: str) -> TwoReplicas:
    return await shared[wire].with_tenant()


@pytest.fixture
def faults(wire: str) -> Faults:
    return FAULTS[wire]


UNREADABLE: dict[str, Verb] = {
    "half JSON": answer(b'{"usage":{'),
    "no UTF-8": answer(b'{"usage":"\xff"}'),
    "no object": answer(b"[]"),
    "no answer in it": answer(b"{}"),
    "HTML": answer(b"<html>", content_type="text/html"),
    "compressed": answer(b"{}", headers=[("content-encoding", "gzip")]),
}


@EACH
@pytest.mark.parametrize("row", UNREADABLE)
async def test_a_json_answer_that_cannot_be_read_may_have_cost(two: TwoReplicas, row: str) -> None:
    found, asked = await two.fail(UNREADABLE[row])
    assert_error(found, 502, "provider_unavailable")
    await assert_unsettled(two, found, asked)


@EACH
async def test_what_a_malformed_answer_tells_of_its_usage_is_charged(
    two: TwoReplicas, faults: Faults
) -> None:
    found, asked = await two.fail(answer(faults.readable_usage))
    assert_error(found, 502, "provider_unavailable")
    assert asked == 1
    assert found.headers["x-should-retry"] == "false"
    entry = await two.scripted.entry_of(found)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", _REPORTED, False)


@EACH
async def test_an_error_object_beside_output_is_charged(two: TwoReplicas, faults: Faults) -> None:
    found, asked = await two.fail(answer(faults.failed_with_output))
    assert_error(found, 502, "provider_unavailable")
    assert asked == 1
    entry = await two.scripted.entry_of(found)
    assert (entry.status, entry.cost) == ("settled", _REPORTED)


@EACH
@pytest.mark.parametrize("row", ["cut", "an end at once", "rubbish", "JSON"])
async def test_a_stream_of_which_nothing_came_may_have_cost(
    two: TwoReplicas, faults: Faults, row: str
) -> None:
    verbs = {
        "cut": faults.cut_after(),
        "an end at once": faults.stream(),
        "rubbish": faults.stream(faults.rubbish),
        "JSON": answer(b"{}", content_type=JSON_TYPE),
    }
    found, asked = await two.fail(verbs[row], stream=True)
    assert_error(found, 502, "provider_unavailable")
    await assert_unsettled(two, found, asked)


@EACH
@pytest.mark.parametrize("row", ["cut", "an end", "an error", "rubbish"])
async def test_what_came_before_a_stream_broke_off_is_charged(
    two: TwoReplicas, faults: Faults, row: str
) -> None:
    """The charge uses the provider's count of the prompt, if any, and the gateway's count of the output."""
    verbs = {
        "cut": faults.cut_after(*faults.said()),
        "an end": faults.stream(*faults.said()),
        "an error": faults.stream(*faults.said(faults.busy())),
        "rubbish": faults.stream(*faults.said(faults.rubbish)),
    }
    found, asked = await two.fail(verbs[row], stream=True)
    assert asked == 1
    said = read_stream(found.text)
    assert (said.text, said.error is not None) == ("0 1 ", True)
    entry = await two.scripted.entry_of(found)
    expected = ("settled", faults.delivered(entry), True)
    assert (entry.status, entry.cost, entry.estimated) == expected


@EACH
async def test_a_cut_after_the_last_report_is_charged_by_it(
    two: TwoReplicas, faults: Faults
) -> None:
    """Only the end of the connection is missing from the answer."""
    found, asked = await two.fail(faults.cut_after(*faults.records()), stream=True)
    assert asked == 1
    entry = await two.scripted.entry_of(found)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", _REPORTED, False)


@EACH
async def test_an_error_in_the_place_of_a_stream(two: TwoReplicas, faults: Faults) -> None:
    """The gateway treats the error as if the backend had answered with its status."""
    found, asked = await two.fail(faults.stream(faults.busy()), stream=True)
    assert_error(found, 502, "provider_unavailable")
    await assert_released(two, found, asked)
    found, asked = await two.fail(faults.stream(faults.timed_out()), stream=True)
    assert_error(found, 502, "provider_unavailable")
    await assert_unsettled(two, found, asked)


@BOTH
@EACH
@pytest.mark.parametrize("status", [408, 424, 502, 504])
async def test_nobody_knows_whether_the_call_ran(
    two: TwoReplicas, status: int, streamed: bool
) -> None:
    found, asked = await two.fail(answer({"message": "no"}, status=status), stream=streamed)
    assert_error(found, 502, "provider_unavailable")
    await assert_unsettled(two, found, asked)


@BOTH
@EACH
@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503, 529])
async def test_a_refusal_is_not_charged(two: TwoReplicas, status: int, streamed: bool) -> None:
    found, asked = await two.fail(refuse(status), stream=streamed)
    assert found.status_code == (429 if status == 429 else 502)
    await assert_released(two, found, asked)


@BOTH
@EACH
async def test_what_is_wrong_with_a_request_is_wrong_everywhere(
    two: TwoReplicas, streamed: bool
) -> None:
    found, asked = await two.fail(refuse(400), stream=streamed)
    assert_error(found, 422, "unprocessable")
    assert asked == 1
    assert (await two.scripted.entry_of(found)).status == "released"
