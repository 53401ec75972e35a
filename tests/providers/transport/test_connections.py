"""Tests how connections to a replica are opened, used again, drained and closed."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest

from tests.support.backend_calls import answering, make, make_call, routed, until
from tests.support.certificates import make_certificate
from tests.support.stream_server import StreamServer
from tests.support.tables import each
from tests.support.upstream import (
    Peer,
    Upstream,
    answer,
    chat,
    chat_records,
    chunk,
    completion,
    hang,
    sse,
    stream,
)
from tollkeeper.providers.transport import pool

_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


async def test_a_connection_is_used_again() -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url) as backend:
        for streamed in (False, True, False, True, True):
            outcome = await make(backend, make_call(streamed=streamed))
            outcome.check_complete()
            # A connection is not used again for 0.1 s after a stream.
            await asyncio.sleep(0.12 if streamed else 0)
        assert upstream.connections == 1


async def test_a_server_that_closes_after_a_stream_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server of llama.cpp does this, against its own `Keep-Alive` header. The test's server closes
    each connection when the next call has begun. The pause after a stream is longer than the test,
    so no connection is used again, even on a slow machine."""
    monkeypatch.setattr(pool, "_COOLDOWN_S", 600.0)
    next_call = asyncio.Event()

    async def answer_and_close(peer: Peer) -> None:
        nonlocal next_call
        next_call.set()
        next_call = began = asyncio.Event()
        await stream()(peer)
        await began.wait()
        peer.close()

    async with Upstream(answer_and_close) as upstream, routed(upstream.url) as backend:
        for _ in range(20):
            (await make(backend, make_call(streamed=True))).check_complete()
        assert len(upstream.requests) == upstream.connections == 20
        await until(lambda: upstream.open_connections == 1)
        next_call.set()
        await until(lambda: upstream.open_connections == 0)


async def test_the_last_bytes_of_a_stream_may_come_later() -> None:
    async def end_late(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(b"".join(chat_records()))
        await asyncio.sleep(0.02)
        await peer.end_chunks()

    async with Upstream(end_late) as upstream, routed(upstream.url) as backend:
        for _ in range(3):
            (await make(backend, make_call(streamed=True))).check_complete()
            await asyncio.sleep(0.15)
        assert upstream.connections == 1


async def test_a_stream_that_goes_on_after_its_end_is_closed() -> None:
    async def go_on(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(b"".join(chat_records()))
        while not peer.left:
            await peer.send_chunk(b": more\n\n" * 1000)

    async with Upstream(go_on) as upstream, routed(upstream.url) as backend:
        (await make(backend, make_call(streamed=True))).check_complete()
        await until(lambda: upstream.open_connections == 0, within_s=0.9)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("encrypted", [False, True])
async def test_an_answer_before_the_whole_question_ends_the_connection(
    streamed: bool, encrypted: bool, tmp_path: Path
) -> None:
    """The server would read the next request on this connection as the rest of the first request."""
    left = asyncio.Event()

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if streamed:
            await send_stream(writer)
        else:
            body = msgspec.json.encode(completion())
            writer.write(_JSON_HEAD % len(body) + body)
        # If the gateway kept the connection, it would still send the rest of the request.
        await asyncio.sleep(0.2)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 20):
                pass
        left.set()

    async def send_stream(writer: asyncio.StreamWriter) -> None:
        records = b"".join(chat_records())
        writer.write(_STREAM_HEAD + b"%x\r\n%b\r\n" % (len(records), records))
        # The call ends with the last record. The gateway drains the rest of the body afterwards.
        await asyncio.sleep(0.05)
        writer.write(b"0\r\n\r\n")

    context, certificate = make_certificate(tmp_path) if encrypted else (None, None)
    scheme = "https" if encrypted else "http"
    async with (
        StreamServer(hasty, tls=context) as server,
        routed(
            f"{scheme}://127.0.0.1:{server.port}/v1",
            tls_ca_file="" if certificate is None else str(certificate),
            keep_alive_s=600,
        ) as backend,
    ):
        call = make_call(streamed=streamed, filler="x" * (32 << 20))
        (await make(backend, call)).check_complete()
        # The gateway closes the connection, although the answer allows keep-alive.
        async with asyncio.timeout(10):
            await left.wait()


async def test_resting_connections_make_room() -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url, connections_max=1) as backend:
        for _ in range(5):
            (await make(backend, make_call(streamed=True))).check_complete()
            await asyncio.sleep(0.005)


async def test_a_connection_is_not_used_again_after_connection_close() -> None:
    closing = answer(headers=[("connection", "close")])
    async with Upstream(closing) as upstream, routed(upstream.url) as backend:
        for _ in range(3):
            (await make(backend, make_call())).check_complete()
        assert upstream.connections == 3


async def test_an_idle_connection_that_was_closed_is_not_used_again() -> None:
    async def answer_and_close(peer: Peer) -> None:
        await answer()(peer)
        peer.close()

    async with Upstream(answer_and_close) as upstream, routed(upstream.url) as backend:
        for _ in range(3):
            (await make(backend, make_call())).check_complete()
            await until(lambda: upstream.open_connections == 0)
            await asyncio.sleep(0.01)
        assert upstream.connections == 3


async def test_idle_connections_are_closed_in_time() -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url, keep_alive_s=0.05) as backend:
        await asyncio.gather(*(make(backend, make_call()) for _ in range(5)))
        assert upstream.connections == 5
        await until(lambda: upstream.open_connections == 0)
        (await make(backend, make_call())).check_complete()


async def test_no_more_idle_connections_than_allowed() -> None:
    async with (
        Upstream(chat()) as upstream,
        routed(upstream.url, idle_connections_max=2) as backend,
    ):
        await asyncio.gather(*(make(backend, make_call()) for _ in range(5)))
        await until(lambda: upstream.open_connections == 2)


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    async def answer_twice(peer: Peer) -> None:
        await answer()(peer)
        await asyncio.sleep(0.01)
        await answer({"choices": [], "stolen": True})(peer)

    async with Upstream(answer_twice) as upstream, routed(upstream.url) as backend:
        (await make(backend, make_call())).check_complete()
        await until(lambda: upstream.open_connections == 0)
        (await make(backend, make_call())).check_complete()
        assert upstream.connections == 2


async def test_two_answers_in_one_segment_end_the_connection() -> None:
    async def answer_twice(peer: Peer) -> None:
        body = msgspec.json.encode(completion())
        await peer.send((_JSON_HEAD % len(body) + body) * 2)

    async with Upstream(answer_twice) as upstream, routed(upstream.url) as backend:
        for _ in range(2):
            (await make(backend, make_call())).check_complete()
        assert upstream.connections == 2


async def test_interim_answers_are_read_over() -> None:
    async def early_hints(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await answer()(peer)

    async with Upstream(early_hints) as upstream, routed(upstream.url) as backend:
        for _ in range(2):
            (await make(backend, make_call())).check_complete()
        assert upstream.connections == 1


async def test_a_body_may_end_with_the_connection() -> None:
    async def until_close(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        await peer.send(msgspec.json.encode(completion()))
        peer.close()

    async with Upstream(until_close) as upstream, routed(upstream.url) as backend:
        (await make(backend, make_call())).check_complete()


@each("streamed", [False, True])
async def test_leaving_before_the_answer_closes_the_connection_at_once(streamed: bool) -> None:
    async with Upstream(hang()) as upstream, routed(upstream.url) as backend:
        task = asyncio.create_task(make(backend, make_call(streamed=streamed)))
        await until(lambda: len(upstream.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: upstream.open_connections == 0)


async def test_leaving_within_the_answer_closes_the_connection_at_once() -> None:
    async def begin(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(sse(chunk("x")))
        await peer.until_left()

    async with Upstream(begin) as upstream, routed(upstream.url) as backend:
        async with answering(backend, make_call(streamed=True)) as opened_answer:
            await opened_answer.next_batch()
        await until(lambda: upstream.open_connections == 0)


async def test_no_more_connections_than_allowed() -> None:
    async with (
        Upstream(hang()) as upstream,
        routed(upstream.url, connections_max=2) as backend,
    ):
        held = [asyncio.create_task(make(backend, make_call())) for _ in range(2)]
        await until(lambda: len(upstream.requests) == 2)
        outcome = await make(backend, make_call())
        assert type(outcome.error).__name__ == "Unavailable"
        assert outcome.error is not None
        assert outcome.error.retry_after_s == 1
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_a_slow_reader_bounds_what_is_held() -> None:
    sent = 0

    async def pour(peer: Peer) -> None:
        nonlocal sent
        await peer.send_head()
        record = sse(chunk("x" * 1000))
        while not peer.left:
            await peer.send_chunk(record)
            sent += len(record)
            await asyncio.sleep(0)

    async with Upstream(pour) as upstream, routed(upstream.url) as backend:
        call = make_call(streamed=True, output_tokens_max=8192)
        async with answering(backend, call):
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.1)
            # The two sockets and the connection buffer only a few megabytes.
            assert sent < 16 << 20
