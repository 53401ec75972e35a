"""The real library of providers in its own environment, in front of a scripted server for each of a
few protocols."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.journeys.clients.environments import NotInstalled, python_environment
from tests.support.upstream import Upstream, Verb, chat, chunk, completion, sse, stream
from tests.support.upstream import answer as whole
from tests.support.upstream_cohere import cohere, text_record, tool_call
from tests.support.upstream_cohere import record as cohere_record
from tests.support.upstream_gemini import call_part, generate, text_part
from tests.support.upstream_gemini import piece as gemini_piece
from tests.support.upstream_messages import message, text_block, text_then, tool_block
from tollkeeper.bootstrap import build_backends, build_bridge
from tollkeeper.embedded.bridge_address import BridgeAddress
from tollkeeper.embedded.provider_bridge import ProviderBridge
from tollkeeper.settings import Settings

KEY = "provider-secret-key"
READY_WITHIN_S = 300.0
PLACES = ("Paris", "Rome")


@dataclass(frozen=True)
class Protocol:
    """How one provider's server is scripted, and what the library makes of its reports."""

    provider: str
    # What is added to the origin of the server to make its base address.
    base_path: str
    ordinary: Callable[[], Verb]
    # Two calls of the tool `weather`, in Paris and in Rome.
    tools: Callable[[], Verb]
    # The first records of a stream, with the text "0 1 ".
    begun: Callable[[], list[bytes]]
    # The header with the key.
    key_header: str
    key_prefix: str = ""
    # Prompt tokens, of which cached, and completion tokens of the ordinary answer.
    usage: tuple[int, int, int] = (12, 0, 5)
    # What is 501 for it, of fields that every model of the tests declares.
    refused: dict[str, Any] = field(default_factory=dict)


def _chat_tools() -> Verb:
    """Two calls at once, in JSON or in a stream."""
    calls = [
        {
            "index": number,
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "weather", "arguments": f'{{"place": "{place}"}}'},
        }
        for number, place in enumerate(PLACES)
    ]
    records = [
        *(sse(chunk(delta={"tool_calls": [call]})) for call in calls),
        sse(chunk(finish="tool_calls")),
        sse({**chunk(), "choices": [], "usage": completion()["usage"]}),
        b"data: [DONE]\n\n",
    ]
    body = completion()
    body["choices"][0] |= {
        "message": {"role": "assistant", "content": None, "tool_calls": calls},
        "finish_reason": "tool_calls",
    }

    async def verb(peer: Any) -> None:
        streamed = peer.request.json.get("stream")
        await (stream(records) if streamed else whole(body))(peer)

    return verb


def _cohere_tools() -> Verb:
    return cohere("I look.", *(tool_call(f"c{place}", "weather", place=place) for place in PLACES))


def _messages_tools() -> Verb:
    calls = (tool_block(f"toolu_{place}", "weather", place=place) for place in PLACES)
    return message(text_block("I look."), *calls, stop_reason="tool_use")


def _gemini_tools() -> Verb:
    return generate(*(call_part(f"c{place}", "weather", place=place) for place in PLACES))


PROTOCOLS = {
    protocol.provider: protocol
    for protocol in (
        Protocol(
            "openai",
            "/v1",
            chat,
            _chat_tools,
            lambda: [sse(chunk("0 ")), sse(chunk("1 "))],
            "authorization",
            "Bearer ",
            usage=(7, 0, 3),
            refused={"functions": [{"name": "f", "parameters": {}}]},
        ),
        Protocol(
            "anthropic",
            "",
            message,
            _messages_tools,
            text_then,
            "x-api-key",
            refused={"logprobs": True, "seed": 1},
        ),
        Protocol(
            "gemini",
            "",
            generate,
            _gemini_tools,
            lambda: [gemini_piece(text_part("0 ")), gemini_piece(text_part("1 "))],
            "x-goog-api-key",
            refused={"logprobs": True},
        ),
        Protocol(
            "cohere",
            "",
            cohere,
            _cohere_tools,
            lambda: [
                cohere_record("message-start", id="c1", delta={"message": {"role": "assistant"}}),
                text_record("0 "),
                text_record("1 "),
            ],
            "authorization",
            "Bearer ",
            # What was read, not the nine tokens that are billed: the library does not pass them on.
            usage=(12, 4, 5),
            refused={"logprobs": True},
        ),
        Protocol(
            "mistral",
            "",
            chat,
            _chat_tools,
            lambda: [sse(chunk("0 ")), sse(chunk("1 "))],
            "authorization",
            "Bearer ",
            usage=(7, 0, 3),
            refused={"logprobs": True, "seed": 1},
        ),
    )
}
PROVIDERS = tuple(PROTOCOLS)


async def library_python() -> Path:
    """The interpreter with the library. Skips where it cannot be installed."""
    try:
        return await asyncio.to_thread(python_environment, "providers")
    except NotInstalled as exc:
        pytest.skip(f"the library cannot be installed: {exc}")


@dataclass(frozen=True)
class Library:
    """A running bridge, and the servers of its providers."""

    settings: Settings
    bridge: ProviderBridge
    upstreams: dict[str, Upstream]
    key_file: Path

    @property
    def address(self) -> BridgeAddress:
        assert self.bridge.address is not None
        return self.bridge.address

    @asynccontextmanager
    async def backend(self, name: str) -> AsyncIterator[Any]:
        backend = build_backends(self.settings, None, self.address)[name]
        await backend.start()
        try:
            yield backend
        finally:
            await backend.close()

    def play(self, provider: str, *script: Verb) -> Upstream:
        """The provider's server, with another script and nothing recorded."""
        upstream = self.upstreams[provider]
        upstream.play(*(script or (PROTOCOLS[provider].ordinary(),)))
        return upstream


@asynccontextmanager
async def running_library(
    folder: Path, *, more_backends: tuple[dict[str, Any], ...] = (), **sections: Any
) -> AsyncIterator[Library]:
    """A bridge for every protocol above, each in front of its own server; a backend and its model
    have the name of the provider."""
    python = await library_python()
    key_file = folder / "key"
    key_file.write_text(f"{KEY}\n")
    async with AsyncExitStack() as stack:
        upstreams = {
            provider: await stack.enter_async_context(Upstream(protocol.ordinary()))
            for provider, protocol in PROTOCOLS.items()
        }
        backends = [
            {
                "name": provider,
                "kind": "library",
                "provider": provider,
                "urls": [origin_of(upstreams[provider]) + protocol.base_path],
                "api_key_file": str(key_file),
            }
            for provider, protocol in PROTOCOLS.items()
        ]
        settings = Settings.model_validate(
            {
                "database": {"data_dir": folder, "pool_size": 8},
                "backends": [*backends, *more_backends],
                **sections,
                "library": {"python": str(python), **sections.get("library", {})},
            }
        )
        bridge = build_bridge(settings)
        assert bridge is not None
        await bridge.start()
        stack.push_async_callback(bridge.close)
        assert await bridge.wait_ready(READY_WITHIN_S), bridge.status
        yield Library(settings, bridge, upstreams, key_file)


def origin_of(upstream: Upstream) -> str:
    return f"http://{urlsplit(upstream.url).netloc}"
