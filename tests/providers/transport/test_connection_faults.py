"""Tests faults of the connection to a model server: the error, and whether the call may have been charged."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.providers.faults import BOTH, check_failure, fault
from tests.support.backend_calls import answering, make, make_call, routed, skip_time, until
from tests.support.certificates import make_certificate
from tests.support.tables import each
from tests.support.upstream import (
    DONE,
    SSE_TYPE,
    Peer,
    Upstream,
    Verb,
    chat,
    chat_records,
    chunk,
    close_before_headers,
    completion,
    drip,
    end_after,
    hang,
    reset_after,
    reset_before_headers,
    sse,
    stream,
    unanswered_url,
    unused_url,
)
from tollkeeper.core.errors import BackendFailed, DeadlineExceeded
from tollkeeper.core.inference import Batch
from tollkeeper.core.port import EventCollector

_HEAD_WITHOUT_LENGTH = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"

# The gateway cannot connect (fault U1 in docs/conformance.md).


@BOTH
async def test_connect_refused(streamed: bool) -> None:
    async with routed(unused_url()) as backend:
        outcome = await make(backend, make_call(streamed=streamed))
        check_failure(outcome, BackendFailed, charged=False)


async def test_connect_timeout() -> None:
    with unanswered_url() as url:
        async with routed(url, connect_timeout_s=0.05) as backend:
            check_failure(await make(backend, make_call()), BackendFailed, charged=False)


async def test_deadline_while_connecting() -> None:
    with unanswered_url() as url:
        async with routed(url) as backend:
            outcome = await make(backend, make_call(), deadline_s=0.05)
            check_failure(outcome, DeadlineExceeded, charged=False)


async def test_leaving_while_connecting() -> None:
    with unanswered_url() as url:
        async with routed(url) as backend:
            task = asyncio.create_task(make(backend, make_call()))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_tls_is_not_downgraded() -> None:
    async with Upstream(chat()) as upstream:
        url = upstream.url.replace("http://", "https://")
        async with routed(url, connect_timeout_s=0.5) as backend:
            check_failure(await make(backend, make_call()), BackendFailed, charged=False)
        assert upstream.requests == []


async def test_tls_certificate_is_verified(tmp_path: Path) -> None:
    context, ca_file = make_certificate(tmp_path)
    async with Upstream(chat(), tls=context) as upstream:
        async with routed(upstream.url) as backend:
            check_failure(await make(backend, make_call()), BackendFailed, charged=False)
        assert upstream.requests == []
        async with routed(upstream.url, tls_ca_file=str(ca_file)) as backend:
            (await make(backend, make_call())).check_complete()
            (await make(backend, make_call(streamed=True))).check_complete()
        name = upstream.url.replace("127.0.0.1", "localhost")
        async with routed(name, tls_ca_file=str(ca_file)) as backend:
            check_failure(await make(backend, make_call()), BackendFailed, charged=False)


# The connection fails or is silent (faults U2 to U7 in docs/conformance.md).


@BOTH
async def test_hang_until_the_deadline(streamed: bool) -> None:
    outcome = await fault(hang(), streamed=streamed, deadline_s=0.1, idle_timeout_s=0.02)
    check_failure(outcome, DeadlineExceeded, charged=True)


@BOTH
@pytest.mark.parametrize("verb", [reset_before_headers(), close_before_headers()])
async def test_lost_before_headers(verb: Verb, streamed: bool) -> None:
    check_failure(await fault(verb, streamed=streamed), BackendFailed, charged=True)


@each("content_type", [SSE_TYPE, "application/json"])
async def test_reset_after_headers(content_type: str) -> None:
    verb = reset_after(content_type=content_type)
    outcome = await fault(verb, streamed=content_type == SSE_TYPE)
    check_failure(outcome, BackendFailed, charged=True)


async def test_silence_after_headers() -> None:
    async def only_head(peer: Peer) -> None:
        await peer.send_head()
        await peer.until_left()

    # The call may wait in a full queue, so the deadline applies, not the idle timeout.
    outcome = await fault(only_head, streamed=True, deadline_s=0.5, idle_timeout_s=0.02)
    check_failure(outcome, DeadlineExceeded, charged=True)


@each("pieces", [1, 2, 3, 20])
async def test_reset_after_pieces(pieces: int) -> None:
    outcome = await fault(reset_after(pieces), streamed=True)
    text = "".join(f"{number} " for number in range(pieces))
    check_failure(outcome, BackendFailed, charged=True, text=text)


@each("finished", [False, True])
@each("pieces", [1, 5])
async def test_end_without_done(pieces: int, finished: bool) -> None:
    outcome = await fault(end_after(pieces, finished=finished), streamed=True)
    text = "".join(f"{number} " for number in range(pieces))
    check_failure(outcome, BackendFailed, charged=True, text=text)


async def test_done_without_finish() -> None:
    outcome = await fault(stream([sse(chunk("a")), DONE]), streamed=True)
    check_failure(outcome, BackendFailed, charged=True, text="a")


async def test_done_at_once() -> None:
    check_failure(await fault(stream([DONE]), streamed=True), BackendFailed, charged=True)


async def test_end_at_once() -> None:
    check_failure(await fault(stream([]), streamed=True), BackendFailed, charged=True)


async def test_body_cut_short() -> None:
    async def short(peer: Peer) -> None:
        await peer.send_head(content_type="application/json", length=1000)
        await peer.send(b'{"choices":')
        peer.close()

    check_failure(await fault(short), BackendFailed, charged=True)


async def test_drip_in_a_stream() -> None:
    verb = drip(sse(chunk("late")), before=sse(chunk("a")), pause_s=0.01)
    outcome = await fault(verb, streamed=True, idle_timeout_s=0.1)
    check_failure(outcome, DeadlineExceeded, charged=True, text="a")


async def test_drip_before_the_first_event() -> None:
    verb = drip(sse(chunk("late")), pause_s=0.01)
    outcome = await fault(verb, streamed=True, deadline_s=0.5)
    check_failure(outcome, DeadlineExceeded, charged=True)


async def test_drip_of_json() -> None:
    body = json.dumps(completion()).encode()
    verb = drip(body, pause_s=0.01, content_type="application/json")
    check_failure(await fault(verb, deadline_s=0.5), DeadlineExceeded, charged=True)


async def test_json_that_stands_still() -> None:
    async def half(peer: Peer) -> None:
        await peer.send_head(content_type="application/json", length=1000)
        await peer.send(b'{"choices":')
        await peer.until_left()

    check_failure(await fault(half, idle_timeout_s=0.05), DeadlineExceeded, charged=True)


def with_skipped_time(records: list[bytes]) -> Verb:
    """Sends records, and moves the event loop's clock 20 s ahead before each record."""

    async def verb(peer: Peer) -> None:
        await peer.send_head()
        for record in records:
            skip_time(20)
            await asyncio.sleep(0.01)  # The idle timer fires now if it is due.
            await peer.send_chunk(record)
            await asyncio.sleep(0.01)
        await peer.end_chunks()

    return verb


async def test_a_slow_but_steady_stream_is_not_idle() -> None:
    verb = with_skipped_time(chat_records(["a", "b", "c", "d"]))
    outcome = await fault(verb, streamed=True, idle_timeout_s=60, deadline_s=1000)
    outcome.check_complete()


async def test_comments_are_a_sign_of_life() -> None:
    records = [sse(chunk("a")), *[b": still here\n\n"] * 8, *chat_records(["b"])[1:]]
    outcome = await fault(
        with_skipped_time(records), streamed=True, idle_timeout_s=60, deadline_s=1000
    )
    outcome.check_complete()


async def test_a_slow_reader_is_not_a_silent_backend() -> None:
    first, *rest = [sse(chunk("a")), *chat_records(["b"])[1:]]
    read = asyncio.Event()

    async def pause(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(first)
        await read.wait()
        skip_time(30)
        await asyncio.sleep(0.01)
        await peer.send_chunk(b"".join(rest))
        await peer.end_chunks()

    class SlowReceiver(EventCollector):
        async def take(self, batch: Batch) -> None:
            await super().take(batch)
            if len(self.events) == 2:
                # The client reads nothing for 100 s. Only the 30 s after that are silence.
                skip_time(100)
                await asyncio.sleep(0.01)
                asyncio.get_running_loop().call_soon(read.set)

    async with Upstream(pause) as upstream, routed(upstream.url, idle_timeout_s=40) as backend:
        deadline = asyncio.get_running_loop().time() + 1000
        receiver = SlowReceiver()
        await backend.answer(make_call(streamed=True), receiver, deadline=deadline)
        assert len(receiver.events) == 5


async def test_the_deadline_holds_for_the_whole_stream() -> None:
    # The stream takes five seconds; its first piece is sent at once.
    verb = stream([sse(chunk("a"))] * 100, pause_s=0.05)
    outcome = await fault(verb, streamed=True, deadline_s=1.5)
    assert type(outcome.error) is DeadlineExceeded
    assert outcome.error.charged
    assert outcome.text()


async def test_the_deadline_while_the_reader_is_slow() -> None:
    """The server marks the end of its answer by closing the connection. The gateway's own close after the
    deadline must not look like this end, which would count against the replica."""

    async def without_length(peer: Peer) -> None:
        await peer.send(_HEAD_WITHOUT_LENGTH + sse(chunk("a")))
        await peer.until_left()

    async with Upstream(without_length) as upstream, routed(upstream.url) as backend:
        async with answering(backend, make_call(streamed=True), deadline_s=0.05) as opened:
            await until(lambda: upstream.under_way == 0)
            await opened.next_batch()
            with pytest.raises(DeadlineExceeded):
                await opened.task
        assert backend.health().reports[0].last_failure == ""
