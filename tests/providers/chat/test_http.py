"""Tests the HTTP requests to a replica with the chat protocol, and the events of its valid answers."""

import asyncio

import msgspec

from tests.support.backend_calls import KEY, answering, make, make_call, readable, routed, usage_in
from tests.support.upstream import (
    DONE,
    USAGE,
    Peer,
    Upstream,
    answer,
    chat,
    chat_records,
    chunk,
    completion,
    sse,
    stream,
    usage_chunk,
)
from tollkeeper.core.inference import (
    Annotation,
    Delta,
    FunctionCallPiece,
    Opened,
    ToolCallPiece,
    UsageReport,
)
from tollkeeper.core.usage import Usage


async def test_json_call() -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url) as backend:
        raw = msgspec.Raw(b'[{"role": "user",  "content": "Hi"}]')
        outcome = await make(backend, make_call(messages=raw, temperature=0.5))
        outcome.check_complete()
        assert outcome.replica == upstream.url
        assert readable(outcome.events) == [
            Opened(),
            Delta(0, "Hello", finish="stop"),
            Usage(7, 3),
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
        assert readable(outcome.events) == [
            Opened(),
            Delta(0, "Hel"),
            Delta(0, "lo"),
            Delta(0, finish="stop"),
            Usage(7, 3),
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

    async with (
        Upstream(slow) as upstream,
        routed(upstream.url) as backend,
        answering(backend, make_call(streamed=True)) as opened_answer,
    ):
        assert await opened_answer.next_batch() == [Opened(), Delta(0, "one")]
        released.set()
        assert readable(await opened_answer.next_batch()) == [
            Delta(0, "two"),
            Delta(0, finish="stop"),
            Usage(7, 3),
        ]
        await opened_answer.task


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
        assert isinstance(report, UsageReport)
        assert usage_in(report) == Usage(
            *(7, 3, 5, 2),
            service_tier="default",
            prompt_details={"cached_tokens": 5},
            completion_details={"reasoning_tokens": 2},
        )
