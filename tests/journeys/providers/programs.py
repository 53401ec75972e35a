"""Defines programs with the unmodified OpenAI SDK that tests run against every provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pydantic
import pytest

from tests.journeys.providers.native_providers import PRICES, Provider
from tests.support.scripted_gateway import MODEL, ScriptedGateway, scripted_gateway
from tests.support.sdks import openai
from tests.support.upstream import Upstream

WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string"}},
        "required": ["place"],
        "additionalProperties": False,
    },
}
BOTH = pytest.mark.parametrize("streamed", [False, True])


class Payer(pydantic.BaseModel):
    who: str


@asynccontextmanager
async def provider_gateway(
    data_dir: Path, conninfo: str, provider: Provider, **model: Any
) -> AsyncIterator[ScriptedGateway]:
    settings = {
        "supported_features": ["tools", "structured_outputs", "reasoning", "web_search"],
        "input_modalities": ["text", "image"],
        "pricing": PRICES,
        "context_length": 32_768,
        "max_output_length": 8192,
        "token_bounds": {"image": provider.tokens_per_image},
        **model,
    }
    backend = {"protocol": provider.protocol, "credential": provider.credential}
    async with (
        Upstream(provider.ordinary()) as upstream,
        scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            ordinary=provider.ordinary,
            backend=backend,
            model=settings,
            extensions={"messages": True},
        ) as running,
    ):
        yield running


def client_of(scripted: ScriptedGateway) -> openai.AsyncOpenAI:
    base_url, api_key = f"{scripted.gateway.base_url}/v1", scripted.tenant.project_key
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)


async def ask_chat(
    client: openai.AsyncOpenAI, messages: list[Any], *, streamed: bool
) -> dict[str, Any]:
    tools: Any = [{"type": "function", "function": WEATHER}]
    if not streamed:
        whole = await client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        return whole.choices[0].message.model_dump(exclude_none=True)
    async with client.chat.completions.stream(
        model=MODEL, messages=messages, tools=tools
    ) as answering:
        async for _ in answering:
            pass
        done = await answering.get_final_completion()
    kept = done.choices[0].message.model_dump(exclude_none=True)
    for call in kept.get("tool_calls", ()):
        call["function"].pop("parsed_arguments", None)
        call.pop("index", None)
    return {name: value for name, value in kept.items() if name != "parsed"}


async def respond(
    client: openai.AsyncOpenAI, said: list[Any], *, streamed: bool
) -> list[dict[str, Any]]:
    fields: Any = {
        "model": MODEL,
        "input": said,
        "tools": [{"type": "function", **WEATHER, "strict": True}],
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
    }
    if streamed:
        async with client.responses.stream(**fields) as answering:
            async for _ in answering:
                pass
            done = await answering.get_final_response()
    else:
        done = await client.responses.create(**fields)
    kept = [item.model_dump(exclude_none=True) for item in done.output]
    for item in kept:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return kept


async def parse(client: openai.AsyncOpenAI, *, streamed: bool) -> tuple[Any, Any]:
    """Asks for an answer with a schema, and returns the parsed results of chat and Responses."""
    asked: list[Any] = [{"role": "user", "content": "Who pays?"}]
    if streamed:
        async with client.chat.completions.stream(
            model=MODEL, messages=asked, response_format=Payer
        ) as answering:
            chat: Any = await answering.get_final_completion()
        async with client.responses.stream(
            model=MODEL, input="Who pays?", text_format=Payer
        ) as responding:
            response: Any = await responding.get_final_response()
    else:
        chat = await client.chat.completions.parse(
            model=MODEL, messages=asked, response_format=Payer
        )
        response = await client.responses.parse(model=MODEL, input="Who pays?", text_format=Payer)
    return chat.choices[0].message.parsed, response.output_parsed
