"""Tests that backends count the tokens of a prompt, with both tokenizers and with every kind of failure."""

import asyncio
import json
from typing import Any

from tests.support.backend_calls import make_call, routed
from tests.support.tables import each
from tests.support.upstream import (
    Upstream,
    Verb,
    answer,
    gzip_bomb,
    hang,
    redirect,
    refuse,
    reset_after,
    reset_before_headers,
    unused_url,
)
from tollkeeper.core.inference import Call
from tollkeeper.core.port import Backend
from tollkeeper.providers.config import Tokenizer


async def count(backend: Backend, call: Call | None = None) -> int | None:
    deadline = asyncio.get_running_loop().time() + 5
    return await backend.count_prompt_tokens(call or make_call(), deadline=deadline)


async def test_no_tokenizer() -> None:
    async with Upstream(answer({"count": 5})) as upstream, routed(upstream.url) as backend:
        assert await count(backend) is None
        assert upstream.connections == 0


async def test_vllm() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with (
        Upstream(answer({"count": 5, "max_model_len": 100, "tokens": [1]})) as upstream,
        routed(upstream.url, tokenizer=Tokenizer.VLLM) as backend,
    ):
        assert await count(backend, make_call(tools=tools, temperature=1)) == 5
        [request] = upstream.requests
        assert request.path == "/tokenize"
        assert request.json == {
            "model": "upstream-model",
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": tools,
        }
        assert request.headers["authorization"].startswith("Bearer ")


async def test_llama_cpp() -> None:
    async with (
        Upstream(answer({"input_tokens": 9})) as upstream,
        routed(upstream.url, tokenizer=Tokenizer.LLAMA_CPP) as backend,
    ):
        assert await count(backend) == 9
        [request] = upstream.requests
        assert request.path == "/v1/chat/completions/input_tokens"
        assert request.json["messages"] == [{"role": "user", "content": "Hi"}]
        assert request.json["model"] == "upstream-model"


@each(
    ("configured", "path"), [("/other/tokenize", "/other/tokenize"), ("tokenize", "/v1/tokenize")]
)
async def test_path(configured: str, path: str) -> None:
    async with (
        Upstream(answer({"count": 5})) as upstream,
        routed(upstream.url, tokenizer=Tokenizer.VLLM, tokenize_path=configured) as backend,
    ):
        assert await count(backend) == 5
        assert upstream.requests[0].path == path


@each(
    "verb",
    [
        refuse(404),
        refuse(500),
        hang(),
        reset_before_headers(),
        reset_after(content_type="application/json"),
        redirect("/"),
        gzip_bomb(1000),
        answer(b"<html>", content_type="text/html"),
        answer(b"not json"),
        answer(b"\xff"),
        answer([5]),
        answer(json.dumps({"count": None}).encode()),
        answer(b" " * (2 << 20)),
    ],
)
async def test_a_failure_is_no_count_and_no_verdict(verb: Verb) -> None:
    async with (
        Upstream(verb) as upstream,
        routed(
            *upstream.two_urls,
            tokenizer=Tokenizer.VLLM,
            tokenize_timeout_s=0.5,
            failures_to_eject=1,
        ) as backend,
    ):
        assert await count(backend) is None
        assert set(backend.health().replicas.values()) == {"healthy"}
        assert len(upstream.requests) == 1


@each("value", [-1, 1.5, "7", True, 2**60, [], {}])
async def test_an_absurd_count_is_no_count(value: Any) -> None:
    async with (
        Upstream(answer({"count": value})) as upstream,
        routed(upstream.url, tokenizer=Tokenizer.VLLM) as backend,
    ):
        assert await count(backend) is None


async def test_nothing_listens() -> None:
    async with routed(unused_url(), tokenizer=Tokenizer.VLLM) as backend:
        assert await count(backend) is None
