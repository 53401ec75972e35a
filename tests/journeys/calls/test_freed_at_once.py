"""Tests that reference counting frees the objects of a request when the request ends.

Objects in a reference cycle stay in memory, with the request's body and its prompt, until a garbage
collection finds them: thousands of requests later, in a pause of many milliseconds."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.judged_gateway import judged_gateway
from tests.support.scripted_gateway import MODEL, ScriptedGateway, eventually
from tests.support.upstream import Verb, chat, chunk, end_after, refuse, reset_after, sse, stream

_CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
_RESPONSE = {"model": MODEL, "input": "Hello"}
# Only objects of the gateway count, not objects of the test's client and upstream.
_OURS = "tollkeeper."


@contextmanager
def _collecting_nothing() -> Iterator[list[str]]:
    """Yields a list. After the block, it contains the gateway's types that only a garbage collection frees."""
    found: list[str] = []
    gc.collect()
    # Ignore existing objects: they may belong to another test, whose gateway ends meanwhile.
    gc.freeze()
    gc.disable()
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += sorted(
            {
                f"{type(one).__module__}.{type(one).__qualname__}"
                for one in gc.garbage
                if type(one).__module__.startswith(_OURS)
            }
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


@pytest.mark.parametrize(
    ("path", "body", "verb", "status"),
    [
        ("/v1/chat/completions", _CHAT, chat(), 200),
        ("/v1/chat/completions", {**_CHAT, "stream": True}, chat(), 200),
        ("/v1/chat/completions", {**_CHAT, "stream": True}, end_after(2), 200),
        ("/v1/chat/completions", _CHAT, reset_after(0), 502),
        ("/v1/chat/completions", _CHAT, refuse(429), 429),
        ("/v1/chat/completions", {**_CHAT, "model": "nobody/none"}, chat(), 404),
        ("/v1/chat/completions", {**_CHAT, "n": 0}, chat(), 400),
        ("/v1/responses", _RESPONSE, chat(), 200),
        ("/v1/responses", {**_RESPONSE, "stream": True}, chat(), 200),
        ("/v1/messages/count_tokens", _CHAT, chat(), 200),
    ],
)
async def test_a_request_is_freed_at_its_end(
    scripted: ScriptedGateway, path: str, body: dict[str, Any], verb: Verb, status: int
) -> None:
    scripted.upstream.play(verb)
    client, headers = scripted.gateway.client, scripted.tenant.as_customer
    # The first request fills caches, which stay.
    await client.post(path, json=body, headers=headers)
    with _collecting_nothing() as left:
        for _ in range(3):
            answer = await client.post(path, json=body, headers=headers)
            assert answer.status_code == status, answer.text
        await scripted.gateway.services.recorder.drain()
        await scripted.gateway.services.activity.drain()
    assert left == []


async def test_a_call_whose_caller_left_is_freed(scripted: ScriptedGateway) -> None:
    inference = scripted.gateway.services.inference
    scripted.upstream.play(stream([sse(chunk("word ")) for _ in range(200)], pause_s=0.005))

    async def leave() -> None:
        async with (
            scripted.another_client() as caller,
            caller.gateway.client.stream(
                "POST",
                "/v1/chat/completions",
                json={**_CHAT, "stream": True},
                headers=scripted.tenant.as_customer,
            ) as answer,
        ):
            async for _ in answer.aiter_bytes():
                break
        await eventually(lambda: inference.running == 0)

    await leave()
    with _collecting_nothing() as left:
        await leave()
        await scripted.gateway.services.activity.drain()
    assert left == []


async def test_judged_calls_are_freed(data_dir: Path, conninfo: str) -> None:
    async with judged_gateway(data_dir, conninfo) as judged:
        await judged.enforce("bomb")
        await judged.chat("peace")
        with _collecting_nothing() as left:
            assert (await judged.chat("peace")).status_code == 200
            assert (await judged.chat("peace", stream=True)).status_code == 200
            assert (await judged.chat("a bomb")).status_code == 403
            services = judged.scripted.gateway.services
            await services.recorder.drain()
            await services.activity.drain()
        assert left == []
