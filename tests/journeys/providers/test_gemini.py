"""The OpenAI SDK, unmodified, in front of a backend that speaks Google's Gemini protocol.

JSON and streams, chat and Responses, a loop of tools, structured output, signed thoughts through
three turns, counts: with the exact bill of each.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pydantic
import pytest

from tests.support.scripted_gateway import MODEL, ScriptedGateway, scripted_gateway
from tests.support.sdks import openai
from tests.support.token_counts import count
from tests.support.upstream import Upstream, Verb, stream
from tests.support.upstream_gemini import (
    blocked,
    call_part,
    error_body,
    generate,
    record,
    refuse_gemini,
    text_part,
    text_then,
    thought_part,
)
from tollkeeper.backends.gemini.thinking import UNSIGNED
from tollkeeper.domain.estimate import estimate_tokens

_PRICES = {
    "prompt": "0.000003",
    "completion": "0.000015",
    "input_cache_read": "0.0000003",
    "web_search": "0.01",
}
_INPUT, _OUTPUT, _READ, _SEARCH = 3_000_000, 15_000_000, 300_000, 10_000_000_000
# Prompts that are longer have twice the price.
_LONG = 20_000
_LONG_PRICES = {
    "prompt": "0.000006",
    "completion": "0.0000225",
    "input_cache_read": "0.0000006",
}
_WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string"}},
        "required": ["place"],
        "additionalProperties": False,
    },
}
_USAGE = {
    "promptTokenCount": 130,
    "cachedContentTokenCount": 30,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 7,
    "totalTokenCount": 157,
}
_COST = 100 * _INPUT + 30 * _READ + 27 * _OUTPUT
BOTH = pytest.mark.parametrize("streamed", [False, True])


class Payer(pydantic.BaseModel):
    who: str


def _counting(*script: Verb) -> Verb:
    """Answers counts at any time, and calls by the script, in its order."""
    answers = iter(script)

    async def verb(peer: Any) -> None:
        if peer.request.path.endswith(":countTokens"):
            await generate(input_tokens=150)(peer)
        else:
            await next(answers)(peer)

    return verb


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    model = {
        "supported_features": ["tools", "structured_outputs", "reasoning", "web_search"],
        "input_modalities": ["text", "image"],
        "pricing": _PRICES,
        "price_tiers": [
            {"above_tokens": _LONG, "pricing": _LONG_PRICES},
        ],
        "context_length": 32_768,
        "max_output_length": 8192,
        "tokens_per_image": 1120,
    }
    async with (
        Upstream(generate()) as upstream,
        scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            ordinary=generate,
            backend={"protocol": "gemini", "credential": "x-goog-api-key"},
            model=model,
        ) as running,
    ):
        yield running


@pytest.fixture
async def scripted(shared: ScriptedGateway) -> ScriptedGateway:
    await shared.works()
    return await shared.with_tenant()


def _client(scripted: ScriptedGateway) -> openai.AsyncOpenAI:
    base_url, api_key = f"{scripted.gateway.base_url}/v1", scripted.tenant.project_key
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)


def _calls(scripted: ScriptedGateway, since: int) -> list[dict[str, Any]]:
    """The bodies of the calls that the backend got, without counts."""
    requests = scripted.upstream.requests[since:]
    return [request.json for request in requests if not request.path.endswith(":countTokens")]


def _response(call_id: str, output: str) -> dict[str, Any]:
    called = {"id": call_id, "name": "weather", "response": {"output": output}}
    return {"functionResponse": called}


@BOTH
async def test_a_chat_program_runs_its_loop_of_tools(
    scripted: ScriptedGateway, streamed: bool
) -> None:
    """Chat has no place for signatures, so the call comes back with the documented stand-in."""
    paris = call_part("c1", "weather", "c2ln", place="Paris")
    rome = call_part("c2", "weather", place="Rome")
    scripted.upstream.play(
        _counting(
            generate(text_part("I look."), paris, rome, usage=_USAGE),
            generate(text_part("Wet and dry."), usage=_USAGE),
        )
    )
    since = len(scripted.upstream.requests)
    tools: Any = [{"type": "function", "function": _WEATHER}]
    messages: list[Any] = [{"role": "user", "content": "The weather in Paris and Rome?"}]
    async with _client(scripted) as client:
        for _ in range(5):
            answered = await _ask_chat(client, messages, tools, streamed=streamed)
            messages.append(answered)
            if not answered.get("tool_calls"):
                break
            for call in answered["tool_calls"]:
                place = json.loads(call["function"]["arguments"])["place"]
                content = {"Paris": "wet", "Rome": "dry"}[place]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    assert messages[-1]["content"] == "Wet and dry."
    first, second = _calls(scripted, since)
    (declared,) = first["tools"][0]["functionDeclarations"]
    assert declared["parametersJsonSchema"] == _WEATHER["parameters"]
    assert second["contents"][1:] == [
        {
            "role": "model",
            "parts": [text_part("I look."), {**paris, "thoughtSignature": UNSIGNED}, rome],
        },
        {"role": "user", "parts": [_response("c1", "wet"), _response("c2", "dry")]},
    ]
    assert (await scripted.balance())["settled"] == 2 * _COST


async def _ask_chat(
    client: openai.AsyncOpenAI, messages: list[Any], tools: Any, *, streamed: bool
) -> dict[str, Any]:
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


@BOTH
async def test_a_responses_program_thinks_through_three_turns(
    scripted: ScriptedGateway, streamed: bool
) -> None:
    """Every signature comes back to the provider on the part that it came with."""
    turns = [
        [thought_part("Thought 0."), call_part("c1", "weather", "c2lnbmF0dXJl0", place="Paris")],
        [thought_part("Thought 1."), text_part("It is wet."), text_part("", "c2lnbmF0dXJl1")],
        [thought_part("Thought 2."), text_part("Yes.")],
    ]
    scripted.upstream.play(_counting(*(generate(*turn, usage=_USAGE) for turn in turns)))
    since = len(scripted.upstream.requests)
    said: list[Any] = [{"role": "user", "content": "The weather in Paris?"}]
    async with _client(scripted) as client:
        said += await _respond(client, said, streamed=streamed)
        said.append({"type": "function_call_output", "call_id": "c1", "output": "wet"})
        said += await _respond(client, said, streamed=streamed)
        said.append({"role": "user", "content": "Sure?"})
        said += await _respond(client, said, streamed=streamed)
    bodies = _calls(scripted, since)
    for body in bodies:
        config = {"thinkingLevel": "LOW", "includeThoughts": True}
        assert body["generationConfig"]["thinkingConfig"] == config
        assert body["toolConfig"] == {"functionCallingConfig": {"mode": "VALIDATED"}}
    # The text of a thought without a signature has no use for the provider.
    assert bodies[2]["contents"] == [
        {"role": "user", "parts": [text_part("The weather in Paris?")]},
        {"role": "model", "parts": turns[0][1:]},
        {"role": "user", "parts": [_response("c1", "wet")]},
        {"role": "model", "parts": turns[1][1:]},
        {"role": "user", "parts": [text_part("Sure?")]},
    ]
    assert bodies[1]["contents"] == bodies[2]["contents"][:3]
    # The caller sees the text of the thoughts, but no signature.
    assert "Thought 0." in json.dumps(said)
    assert "c2lnbmF0dXJl" not in json.dumps(said)
    assert (await scripted.balance())["settled"] == 3 * _COST


async def _respond(
    client: openai.AsyncOpenAI, said: list[Any], *, streamed: bool
) -> list[dict[str, Any]]:
    fields: Any = {
        "model": MODEL,
        "input": said,
        "tools": [{"type": "function", **_WEATHER, "strict": True}],
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


async def test_another_project_cannot_use_signed_thoughts(scripted: ScriptedGateway) -> None:
    other = await scripted.with_tenant()
    call = call_part("c1", "weather", "c2ln", place="Paris")
    scripted.upstream.play(_counting(generate(call), generate()))
    async with _client(scripted) as client:
        said: list[Any] = [{"role": "user", "content": "Hi"}]
        said += await _respond(client, said, streamed=False)
    said.append({"type": "function_call_output", "call_id": "c1", "output": "wet"})
    since = len(scripted.upstream.requests)
    async with _client(other) as client:
        await _respond(client, said, streamed=False)
    (body,) = _calls(scripted, since)
    assert body["contents"][1]["parts"] == [{**call, "thoughtSignature": UNSIGNED}]


@BOTH
async def test_structured_output(scripted: ScriptedGateway, streamed: bool) -> None:
    verb = generate(text_part('{"who": "the tenant"}'), usage=_USAGE)
    scripted.upstream.play(_counting(verb, verb))
    since = len(scripted.upstream.requests)
    asked: list[Any] = [{"role": "user", "content": "Who pays?"}]
    async with _client(scripted) as client:
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
            response = await client.responses.parse(
                model=MODEL, input="Who pays?", text_format=Payer
            )
    assert chat.choices[0].message.parsed == response.output_parsed == Payer(who="the tenant")
    for body in _calls(scripted, since):
        schema = body["generationConfig"]["responseJsonSchema"]
        assert (schema["required"], schema["additionalProperties"]) == (["who"], False)
    assert (await scripted.balance())["settled"] == 2 * _COST


async def test_the_providers_count_is_exact_and_bounds_the_prompt(
    scripted: ScriptedGateway,
) -> None:
    scripted.upstream.play(_counting(generate(usage=_USAGE)))
    counted = await count(scripted)
    assert counted.json() == {"input_tokens": 150}
    assert counted.headers["x-token-count-estimated"] == "false"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    answered = await scripted.chat(messages=[{"role": "user", "content": [image]}])
    entry = await scripted.entry_of(answered)
    assert entry.prompt_tokens_max == 150 + 1120
    assert (entry.cost, (await scripted.balance())["settled"]) == (_COST, _COST)
    usage = answered.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (130, 27)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 30
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 7


@BOTH
async def test_a_long_prompt_has_its_own_price(scripted: ScriptedGateway, streamed: bool) -> None:
    usage = {"promptTokenCount": _LONG + 1, "candidatesTokenCount": 10}
    scripted.upstream.play(_counting(generate(usage={**usage, "totalTokenCount": _LONG + 11})))
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
    verb = generate(text_part("It rained."), usage=_USAGE, groundingMetadata=grounding)
    scripted.upstream.play(_counting(verb))
    answered = await scripted.chat(web_search_options={}, stream=streamed)
    assert "https://news.example/rain" in answered.text
    assert (await scripted.balance())["settled"] == _COST + _SEARCH


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"cache_salt": "s"}, "cache_salt"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"reasoning_effort": "none"}, "reasoning_effort"),
    ],
)
async def test_what_the_provider_cannot_do_is_501(
    scripted: ScriptedGateway, fields: dict[str, Any], param: str
) -> None:
    since = len(scripted.upstream.requests)
    answered = await scripted.chat(**fields)
    assert answered.status_code == 501
    assert answered.json()["error"]["param"] == param
    assert _calls(scripted, since) == []
    assert (await scripted.balance())["settled"] == 0


async def test_who_is_charged_for_faults(scripted: ScriptedGateway) -> None:
    """Nobody where nothing was generated; by the provider's input and our output otherwise."""
    scripted.upstream.play(_counting(refuse_gemini(503, "UNAVAILABLE")))
    refused = await scripted.chat()
    assert refused.status_code == 502
    assert (await scripted.entry_of(refused)).status == "released"
    error = record(error_body(503, "UNAVAILABLE"))
    scripted.upstream.play(_counting(stream(text_then(error))))
    broken = await scripted.chat(stream=True)
    entry = await scripted.entry_of(broken)
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == 12 * _INPUT + max(2, estimate_tokens("0 1 ")) * _OUTPUT
    assert (await scripted.balance())["unsettled"] == 0


async def test_a_blocked_prompt_is_read_and_charged(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(_counting(stream([record(blocked())])))
    since = len(scripted.upstream.requests)
    async with _client(scripted) as client:
        said: list[Any] = [{"role": "user", "content": "Hi"}]
        pieces = [
            piece
            async for piece in await client.chat.completions.create(
                model=MODEL, messages=said, stream=True
            )
        ]
    ends = [choice.finish_reason for piece in pieces for choice in piece.choices]
    assert ends[-1] == "content_filter"
    assert len(_calls(scripted, since)) == 1
    assert (await scripted.balance())["settled"] == 12 * _INPUT
