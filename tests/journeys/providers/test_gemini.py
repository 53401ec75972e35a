"""Tests the features of Gemini through the gateway: prices of long prompts, searches, blocked prompts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.providers.native_providers import INPUT, PRICES, PROVIDERS, SEARCH
from tests.journeys.providers.programs import BOTH, client_of, provider_gateway
from tests.support.scripted_gateway import MODEL, ScriptedGateway
from tests.support.upstream import stream
from tests.support.upstream_gemini import blocked, generate, record, text_part

_GEMINI = PROVIDERS["gemini"]
# Calls whose prompts have more tokens than this are charged with _LONG_PRICES.
_LONG = 20_000
_LONG_PRICES = {
    "prompt": "0.000006",
    "completion": "0.0000225",
    "input_cache_read": "0.0000006",
}


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    prices = {name: PRICES[name] for name in (*_LONG_PRICES, "web_search")}
    tiers = [{"above_tokens": _LONG, "pricing": _LONG_PRICES}]
    async with provider_gateway(
        data_dir, conninfo, _GEMINI, pricing=prices, price_tiers=tiers
    ) as running:
        yield running


@pytest.fixture
async def scripted(shared: ScriptedGateway) -> ScriptedGateway:
    await shared.works()
    return await shared.with_tenant()


async def test_the_caller_reads_how_much_was_reasoning(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(_GEMINI.counting(_GEMINI.answer()))
    usage = (await scripted.chat(reasoning_effort="low")).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 7
    (body,) = [
        request.json
        for request in scripted.upstream.requests[-2:]
        if not _GEMINI.is_count(request.path)
    ]
    config = {"thinkingLevel": "LOW", "includeThoughts": True}
    assert body["generationConfig"]["thinkingConfig"] == config


@BOTH
async def test_a_long_prompt_has_its_own_price(scripted: ScriptedGateway, streamed: bool) -> None:
    usage = {"promptTokenCount": _LONG + 1, "candidatesTokenCount": 10}
    verb = generate(usage={**usage, "totalTokenCount": _LONG + 11})
    scripted.upstream.play(_GEMINI.counting(verb))
    await scripted.chat(stream=streamed)
    assert (await scripted.balance())["settled"] == (_LONG + 1) * 6_000_000 + 10 * 22_500_000


@BOTH
async def test_a_search_has_its_fee_and_its_sources(
    scripted: ScriptedGateway, streamed: bool
) -> None:
    grounding = {
        "webSearchQueries": ["rain"],
        "groundingChunks": [{"web": {"uri": "https://news.example/rain", "title": "Rain"}}],
        "groundingSupports": [{"segment": {"endIndex": 10}, "groundingChunkIndices": [0]}],
    }
    verb = generate(text_part("It rained."), usage=_GEMINI.usage, groundingMetadata=grounding)
    scripted.upstream.play(_GEMINI.counting(verb))
    answered = await scripted.chat(web_search_options={}, stream=streamed)
    assert "https://news.example/rain" in answered.text
    assert (await scripted.balance())["settled"] == _GEMINI.cost + SEARCH


async def test_a_blocked_prompt_is_read_and_charged(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(_GEMINI.counting(stream([record(blocked())])))
    since = len(scripted.upstream.requests)
    async with client_of(scripted) as client:
        said: list[Any] = [{"role": "user", "content": "Hi"}]
        pieces = [
            piece
            async for piece in await client.chat.completions.create(
                model=MODEL, messages=said, stream=True
            )
        ]
    ends = [choice.finish_reason for piece in pieces for choice in piece.choices]
    assert ends[-1] == "content_filter"
    paths = [request.path for request in scripted.upstream.requests[since:]]
    assert len([path for path in paths if not _GEMINI.is_count(path)]) == 1
    assert (await scripted.balance())["settled"] == 12 * INPUT
