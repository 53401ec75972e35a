"""Tests the features of Gemini through the gateway: prices of long prompts, searches, blocked prompts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.providers.native_providers import INPUT, OUTPUT, PRICES, PROVIDERS, SEARCH
from tests.journeys.providers.programs import BOTH, client_of, provider_gateway
from tests.support.gateway import assert_error
from tests.support.scripted_gateway import MODEL, ScriptedGateway
from tests.support.upstream import answer, refuse, stream
from tests.support.upstream_gemini import blocked, generate, piece, record, text_part, whole

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
async def test_the_largest_seed_of_several_completions(
    scripted: ScriptedGateway, streamed: bool
) -> None:
    """Gemini refuses seeds beyond 32 bits, so no part may have a larger seed than the client's."""
    scripted.upstream.play(_GEMINI.counting(*3 * [_GEMINI.answer()]))
    before = len(scripted.upstream.requests)
    found = await scripted.chat(stream=streamed, n=3, seed=2**31 - 1)
    assert found.status_code == 200, found.text
    sent = scripted.upstream.requests[before:]
    seeds = [one.json["generationConfig"]["seed"] for one in sent if not _GEMINI.is_count(one.path)]
    assert sorted(seeds) == [2**31 - 3, 2**31 - 2, 2**31 - 1]


async def test_a_seed_that_no_part_can_have_costs_nothing(scripted: ScriptedGateway) -> None:
    before = len(scripted.upstream.requests)
    found = await scripted.chat(n=3, seed=2**31)
    assert_error(found, 400, "invalid_request", param="seed")
    assert all(_GEMINI.is_count(one.path) for one in scripted.upstream.requests[before:])
    assert (await scripted.balance())["settled"] == 0


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


@BOTH
@pytest.mark.parametrize("usage", [{"trafficType": "ON_DEMAND"}, None])
async def test_a_blocked_prompt_without_counts_costs_at_most_the_prompt(
    scripted: ScriptedGateway, usage: dict[str, Any] | None, streamed: bool
) -> None:
    """The model reasons, but nothing was generated. Model Armor at Vertex AI reports no counts."""
    body = {"promptFeedback": {"blockReason": "MODEL_ARMOR"}, "usageMetadata": usage}
    verb = stream([record(body)]) if streamed else answer(body)
    scripted.upstream.play(_GEMINI.counting(verb))
    entry = await scripted.entry_of(await scripted.chat(stream=streamed))
    assert (entry.status, entry.cost) == ("settled", _GEMINI.input_tokens * INPUT)
    assert entry.estimated


@BOTH
@pytest.mark.parametrize("counted", [True, False])
async def test_a_report_without_the_prompt_is_completed(
    scripted: ScriptedGateway, counted: bool, streamed: bool
) -> None:
    """The Gemini API reports only the output if the prompt has an image at an ordinary URL. The prompt is
    charged by `countTokens` or, without it, by an estimate of the text and the image."""
    told = {"candidatesTokenCount": 18, "thoughtsTokenCount": 58, "totalTokenCount": 76}
    verb = generate(text_part("A potato."), usage=told)
    if streamed:
        running = {"candidatesTokenCount": 4, "thoughtsTokenCount": 58, "totalTokenCount": 62}
        end = record(whole(text_part("potato."), usage=told))
        verb = stream([piece(text_part("A "), usage=running), end])
    if counted:
        scripted.upstream.play(_GEMINI.counting(verb))
    else:
        scripted.upstream.play(refuse(500), verb)
    image = {"type": "image_url", "image_url": {"url": "https://pictures.example/potato.png"}}
    text = {"type": "text", "text": "What is it?"}
    messages = [{"role": "user", "content": [text, image]}]
    entry = await scripted.entry_of(await scripted.chat(messages=messages, stream=streamed))
    assert (entry.status, entry.estimated) == ("settled", True)
    prompt = _GEMINI.input_tokens if counted else entry.prompt_tokens
    assert entry.cost == prompt * INPUT + 76 * OUTPUT


async def test_a_text_that_nobody_has_counted_is_no_blocked_prompt(
    scripted: ScriptedGateway,
) -> None:
    """The model may have reasoned, so the whole output of the hold is charged."""
    verb = generate(text_part("Hello"), usage={"trafficType": "ON_DEMAND"})
    scripted.upstream.play(_GEMINI.counting(verb))
    entry = await scripted.entry_of(await scripted.chat())
    assert entry.cost == _GEMINI.input_tokens * INPUT + entry.output_tokens_max * OUTPUT
