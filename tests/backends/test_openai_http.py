"""What goes to a replica, what comes of its proper answers, and how connections are used."""

import asyncio

import msgspec
import pytest

from tests.backends.calls import KEY, make, make_call, routed, until
from tests.upstream import (
    DONE,
    USAGE,
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
    usage_chunk,
)
from tollkeeper.domain.inference import (
    Annotation,
    Delta,
    FunctionCallPiece,
    Opened,
    ToolCallPiece,
    Usage,
    UsageReport,
)


async def test_json_call() -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url) as backend:
        raw = msgspec.Raw(b'[{"role": "user",  "content": "Hi"}]')
        outcome = await make(backend, make_call(messages=raw, temperature=0.5))
        outcome.check_complete()
        assert outcome.replica == upstream.url
        assert outcome.events == [
            Opened(),
            Delta(0, "Hello", finish="stop"),
            UsageReport(Usage(7, 3)),
        ]
        [request] = upstream.requests
        assert request.path == "/v1/chat/completions"
        assert request.json == {
            "messages": [{"role": "user", "content": "Hi"}],
            "temperature": 0.5,
            "model": "upstream-model",
            "max_completion_tokens": 1024,
            "stream": False,
        }


async def test_only_our_own_headers_travel() -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url) as backend:
        await make(backend, make_call())
        await make(backend, make_call(streamed=True))
        plain, streamed = upstream.requests
        shared = {
            "host": f"127.0.0.1:{upstream.port}",
            "user-agent": "tollkeeper",
            "content-type": "application/json",
            "accept-encoding": "identity",
            "authorization": f"Bearer {KEY}",
        }
        assert plain.headers == {
            **shared,
            "accept": "application/json",
            "content-length": str(len(plain.body)),
        }
        assert streamed.headers == {
            **shared,
            "accept": "text/event-stream",
            "content-length": str(len(streamed.body)),
        }


async def test_without_a_key_no_credential_is_sent() -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url, api_key=None) as backend:
        await make(backend, make_call())
        assert "authorization" not in upstream.requests[0].headers


async def test_stream() -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True))
        outcome.check_complete()
        assert outcome.events == [
            Opened(),
            Delta(0, "Hel"),
            Delta(0, "lo"),
            Delta(0, finish="stop"),
            UsageReport(Usage(7, 3)),
        ]
        sent = upstream.requests[0].json
        assert sent["stream"] is True
        assert sent["stream_options"] == {"include_usage": True}
        assert "n" not in sent


async def test_pieces_come_as_they_are_sent() -> None:
    released = asyncio.Event()

    async def slow(peer: Peer) -> None:
        first, *rest = chat_records(["one", "two"])[1:]
        await peer.send_head()
        await peer.send_chunk(first)
        await released.wait()
        await peer.send_chunk(b"".join(rest))
        await peer.end_chunks()

    async with Upstream(slow) as upstream, routed(upstream.url) as backend:
        deadline = asyncio.get_running_loop().time() + 10
        async with backend.open(make_call(streamed=True), deadline=deadline) as opened_answer:
            batches = aiter(opened_answer.batches)
            assert await anext(batches) == [Opened(), Delta(0, "one")]
            released.set()
            assert await anext(batches) == [
                Delta(0, "two"),
                Delta(0, finish="stop"),
                UsageReport(Usage(7, 3)),
            ]
            with pytest.raises(StopAsyncIteration):
                await anext(batches)


async def test_native_n() -> None:
    records = [
        sse(chunk("a", index=1)),
        sse(chunk("b", index=0)),
        sse(chunk(index=1, finish="length")),
        sse(chunk(index=0, finish="stop")),
        sse(usage_chunk()),
        DONE,
    ]
    async with Upstream(stream(records), chat()) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True, choices=2))
        outcome.check_complete(choices=2)
        assert (outcome.text(0), outcome.text(1)) == ("b", "a")
        outcome = await make(backend, make_call(choices=3))
        outcome.check_complete(choices=3)
        assert [request.json["n"] for request in upstream.requests] == [2, 3]


async def test_always_stream_serves_json_callers_from_a_stream() -> None:
    async with (
        Upstream(chat()) as upstream,
        routed(upstream.url, always_stream=True) as backend,
    ):
        outcome = await make(backend, make_call())
        outcome.check_complete()
        assert outcome.text() == "Hello"
        assert upstream.requests[0].json["stream"] is True


async def test_everything_a_message_can_carry() -> None:
    logprobs = {"content": [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}]}
    message = {
        "role": "assistant",
        "content": "text",
        "refusal": "no",
        "reasoning_content": "because",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": None}},
        ],
        "function_call": {"name": "h", "arguments": "{}"},
        "annotations": [
            {
                "type": "url_citation",
                "url_citation": {"url": "u", "title": "t", "start_index": 1, "end_index": 2},
            },
            {"type": "other"},
        ],
        "unknown": {"deep": [1]},
    }
    body = completion(
        choices=1,
        usage={
            **USAGE,
            "prompt_tokens_details": {"cached_tokens": 5},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        system_fingerprint="fp",
        service_tier="default",
        prompt_logprobs=[None, {"1": {"logprob": -1.0}}],
    )
    body["choices"][0].update(message=message, logprobs=logprobs, finish_reason="tool_calls")
    async with Upstream(answer(body)) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call())
        opened, delta, report = outcome.events
        assert isinstance(opened, Opened)
        assert (opened.system_fingerprint, opened.service_tier) == ("fp", "default")
        assert opened.prompt_logprobs is not None
        assert msgspec.json.decode(opened.prompt_logprobs) == [None, {"1": {"logprob": -1.0}}]
        assert isinstance(delta, Delta)
        assert delta.logprobs is not None
        assert msgspec.json.decode(delta.logprobs) == logprobs
        assert msgspec.structs.replace(delta, logprobs=None) == Delta(
            choice=0,
            text="text",
            reasoning="because",
            refusal="no",
            tool_calls=(ToolCallPiece(0, "c1", "f", "{}"), ToolCallPiece(1, "c2", "g", "")),
            function_call=FunctionCallPiece("h", "{}"),
            annotations=(Annotation("u", "t", 1, 2),),
            finish="tool_calls",
        )
        assert report == UsageReport(
            Usage(7, 3, 5, 2, {"cached_tokens": 5}, {"reasoning_tokens": 2})
        )


# Connections.


async def test_a_connection_is_used_again() -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url) as backend:
        for streamed in (False, True, False, True, True):
            outcome = await make(backend, make_call(streamed=streamed))
            outcome.check_complete()
            # After a stream a connection rests for a tenth of a second.
            await asyncio.sleep(0.12 if streamed else 0)
        assert upstream.connections == 1


async def test_a_server_that_closes_after_a_stream_without_a_word() -> None:
    """As the server of llama.cpp does, against its own `Keep-Alive` header."""

    async def answer_and_close(peer: Peer) -> None:
        await stream()(peer)
        await asyncio.sleep(0.005)
        peer.close()

    async with Upstream(answer_and_close) as upstream, routed(upstream.url) as backend:
        for _ in range(20):
            (await make(backend, make_call(streamed=True))).check_complete()
        assert len(upstream.requests) == 20


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


async def test_an_answer_before_the_whole_question_ends_the_connection() -> None:
    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = msgspec.json.encode(completion())
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head % len(body) + body)
        left.append(await reader.read(1) == b"" or await drained(reader))
        writer.close()

    async def drained(reader: asyncio.StreamReader) -> bool:
        try:
            while await reader.read(1 << 20):
                pass
        except ConnectionError:
            pass
        return True

    left: list[bool] = []
    server = await asyncio.start_server(hasty, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with routed(f"http://127.0.0.1:{port}/v1") as backend:
        (await make(backend, make_call(filler="x" * (32 << 20)))).check_complete()
        # The connection is closed, although the answer allowed to keep it.
        await until(lambda: left == [True], within_s=2)
    server.close()
    await server.wait_closed()


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
        await until(lambda: upstream.open_connections == 0, within_s=1)
        (await make(backend, make_call())).check_complete()
        assert upstream.connections == 2


async def test_two_answers_in_one_segment_end_the_connection() -> None:
    async def answer_twice(peer: Peer) -> None:
        body = msgspec.json.encode(completion())
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        await peer.send((head % len(body) + body) * 2)

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


@pytest.mark.parametrize("streamed", [False, True])
async def test_leaving_before_the_answer_closes_the_connection_at_once(streamed: bool) -> None:
    async with Upstream(hang()) as upstream, routed(upstream.url) as backend:
        task = asyncio.create_task(make(backend, make_call(streamed=streamed)))
        await until(lambda: len(upstream.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: upstream.open_connections == 0, within_s=1)


async def test_leaving_within_the_answer_closes_the_connection_at_once() -> None:
    async def begin(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(sse(chunk("x")))
        await peer.until_left()

    async with Upstream(begin) as upstream, routed(upstream.url) as backend:
        deadline = asyncio.get_running_loop().time() + 10
        async with backend.open(make_call(streamed=True), deadline=deadline) as opened_answer:
            await anext(aiter(opened_answer.batches))
        await until(lambda: upstream.open_connections == 0, within_s=1)


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
        deadline = asyncio.get_running_loop().time() + 10
        call = make_call(streamed=True, output_tokens_max=8192)
        async with backend.open(call, deadline=deadline):
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.1)
            # What the two sockets hold, and what the connection does: megabytes, not more.
            assert sent < 16 << 20
