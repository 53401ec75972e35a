"""Tests a backend with the Responses protocol over HTTP: answers, and the cost of faults at every position."""

import asyncio

import pytest

from tests.providers.faults import BOTH, check_failure
from tests.providers.responses.faults import fault, silent_after, used
from tests.support.backend_calls import KEY, make, make_call, routed
from tests.support.tables import each
from tests.support.upstream import (
    DONE,
    Peer,
    Upstream,
    Verb,
    answer,
    close_before_headers,
    completion,
    cut,
    endless,
    fat_line,
    gzip_bomb,
    refuse,
    reset_before_headers,
    stream,
)
from tests.support.upstream_responses import BEGUN, respond, text_piece, text_then
from tests.support.upstream_wire import (
    call_item,
    message_item,
    reasoning_item,
    response,
    response_records,
)
from tollkeeper.core.errors import (
    BackendFailed,
    DeadlineExceeded,
    OptionUnsupported,
    ProviderRejected,
    RateLimited,
    TollkeeperError,
)
from tollkeeper.core.inference import Delta, ToolCallPiece
from tollkeeper.providers.config import WireProtocol
from tollkeeper.providers.fan_out import FanOutBackend


@BOTH
async def test_an_answer(streamed: bool) -> None:
    items = [reasoning_item("Hm."), message_item("Hello"), call_item("c", "f", '{"a": 1}')]
    usage = {
        "input_tokens": 70,
        "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 20},
        "total_tokens": 100,
    }
    async with (
        Upstream(respond(*items, usage=usage)) as upstream,
        routed(upstream.url, protocol=WireProtocol.RESPONSES) as backend,
    ):
        outcome = await make(backend, make_call(streamed=streamed))
        outcome.check_complete()
        assert outcome.text() == "Hello"
        assert "".join(delta.reasoning or "" for delta in outcome.deltas) == "Hm."
        pieces = [piece for delta in outcome.deltas for piece in delta.tool_calls]
        assert pieces[0] == ToolCallPiece(0, "c", "f")
        assert "".join(piece.arguments for piece in pieces) == '{"a": 1}'
        assert outcome.deltas[-1] == Delta(0, finish="tool_calls")
        assert outcome.usage == used(70, 30, 64, 20)
        [request] = upstream.requests
        assert request.path == "/v1/responses"
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.json["stream"] is streamed
        assert request.json["store"] is False


@each("done", [True, False])
async def test_a_connection_is_used_again(done: bool) -> None:
    """The connection is used again with and without `[DONE]` after the last record."""
    verb = stream([*response_records(), *([DONE] if done else [])])
    async with (
        Upstream(verb) as upstream,
        routed(upstream.url, protocol=WireProtocol.RESPONSES) as backend,
    ):
        async with asyncio.timeout(10):
            while upstream.connections >= len(upstream.requests):
                (await make(backend, make_call(streamed=True))).check_complete()
                # A connection is not used again for a short time after a stream.
                await asyncio.sleep(0.05)


async def test_several_choices_are_several_calls() -> None:
    async with (
        Upstream(respond()) as upstream,
        routed(upstream.url, protocol=WireProtocol.RESPONSES) as backend,
    ):
        fanned = FanOutBackend(backend, concurrency=2)
        outcome = await make(fanned, make_call(streamed=True, choices=3))
        outcome.check_complete(choices=3)
        assert [outcome.text(choice) for choice in range(3)] == ["Hello"] * 3
        charge = outcome.meter.charge()
        assert (charge.prompt_tokens, charge.completion_tokens) == (21, 9)
        assert len(upstream.requests) == 3
        assert not any("n" in request.json for request in upstream.requests)


async def test_what_cannot_be_asked_is_not_asked() -> None:
    async with (
        Upstream(respond()) as upstream,
        routed(upstream.url, protocol=WireProtocol.RESPONSES) as backend,
    ):
        outcome = await make(backend, make_call(seed=7))
        assert type(outcome.error) is OptionUnsupported
        assert not outcome.error.charged
        assert upstream.connections == 0
        assert backend.health().ready


# Faults at every position of an answer.


async def test_before_the_answer() -> None:
    for verb in (reset_before_headers(), close_before_headers()):
        for streamed in (True, False):
            check_failure(await fault(verb, streamed=streamed), BackendFailed, charged=True)


@BOTH
@pytest.mark.parametrize(
    ("verb", "error"),
    [
        (refuse(400), ProviderRejected),
        (refuse(422), ProviderRejected),
        (refuse(429), RateLimited),
        (refuse(500), BackendFailed),
    ],
)
async def test_refused(verb: Verb, error: type[TollkeeperError], streamed: bool) -> None:
    check_failure(await fault(verb, streamed=streamed), error, charged=False)


@BOTH
@pytest.mark.parametrize(
    "verb",
    [gzip_bomb(1 << 20), answer(b"<html>", content_type="text/html"), refuse(502), refuse(504)],
)
async def test_what_may_have_run(verb: Verb, streamed: bool) -> None:
    check_failure(await fault(verb, streamed=streamed), BackendFailed, charged=True)


RECORDS = response_records(pieces=2)
SUBSTANCE = next(at for at, record in enumerate(RECORDS) if b".delta" in record)


@each("kept", range(len(RECORDS)))
async def test_an_end_before_the_end(kept: int) -> None:
    """The body ends properly, but at least its last record is missing."""
    outcome = await fault(stream(RECORDS[:kept]))
    pieces = min(2, max(0, kept - SUBSTANCE))
    text = ("Hel", "Hello")[pieces - 1] if pieces else ""
    check_failure(outcome, BackendFailed, charged=True, text=text)


@each("records", [[], BEGUN, text_then()])
async def test_a_reset(records: list[bytes]) -> None:
    """A reset may discard bytes that were not read. Text that was read is delivered and charged."""

    async def verb(peer: Peer) -> None:
        await peer.send_head()
        for record in records:
            await peer.send_chunk(record)
        peer.reset()

    outcome = await fault(verb)
    assert type(outcome.error) is BackendFailed
    assert "0 1 ".startswith(outcome.text())
    assert outcome.error.charged


async def test_a_broken_connection() -> None:
    for records, text in (([], ""), (BEGUN, ""), (text_then(), "0 1 ")):
        outcome = await fault(half_sent(records))
        check_failure(outcome, BackendFailed, charged=True, text=text)


def half_sent(records: list[bytes]) -> Verb:
    """Sends the records, and then an invalid chunk. Unlike a reset, this loses no sent bytes."""

    async def verb(peer: Peer) -> None:
        await peer.send_head()
        if records:
            await peer.send_chunk(b"".join(records))
        await peer.send(b"this is no chunk\r\n")
        await peer.until_left()

    return verb


@each(
    "garbage",
    [b"data: hello\n\n", b"data: []\n\n", b'data: {"type":"\xff"}\n\n', DONE, b"data\n\n"],
)
async def test_garbage(garbage: bytes) -> None:
    check_failure(await fault(stream([garbage, *RECORDS])), BackendFailed, charged=True)
    outcome = await fault(stream(text_then(garbage, *RECORDS)))
    check_failure(outcome, BackendFailed, charged=True, text="0 1 ")


async def test_the_answer_of_another_protocol() -> None:
    other = answer(completion(usage=None))
    check_failure(await fault(other, streamed=False), BackendFailed, charged=True)
    check_failure(await fault(stream()), BackendFailed, charged=True)


async def test_bounds() -> None:
    outcome = await fault(fat_line(1 << 25, before=b"".join(text_then())))
    check_failure(outcome, BackendFailed, charged=True, text="0 1 ")
    check_failure(await fault(fat_line(1 << 25)), BackendFailed, charged=True)
    outcome = await fault(
        answer(response(message_item("x" * 5000))), streamed=False, body_bytes_max=4096
    )
    check_failure(outcome, BackendFailed, charged=True)
    outcome = await fault(endless(text_piece("on ")))
    assert type(outcome.error) is BackendFailed
    assert len(outcome.deltas) <= 2 * 1024 + 64


async def test_silence_in_the_middle() -> None:
    outcome = await fault(silent_after(text_then()), idle_timeout_s=0.1)
    check_failure(outcome, DeadlineExceeded, charged=True, text="0 1 ")


@pytest.mark.slow
async def test_a_stream_cut_at_every_byte() -> None:
    data = (
        b"\xef\xbb\xbf"
        + b"".join(
            response_records(message_item("zę🦊 b"), call_item("c", "f", "{}"), pieces=3)
        ).replace(b"\n", b"\r\n")
        + DONE
    )
    cuts = [cut(data, position) for position in range(len(data))]
    every_byte = cut(data, *range(1, len(data)))
    async with (
        Upstream(*cuts, every_byte) as upstream,
        routed(upstream.url, protocol=WireProtocol.RESPONSES) as backend,
    ):
        expected = None
        for _ in range(len(cuts) + 1):
            outcome = await make(backend, make_call(streamed=True))
            outcome.check_complete()
            expected = expected or outcome.events
            assert outcome.events == expected
        assert outcome.text() == "zę🦊 b"
