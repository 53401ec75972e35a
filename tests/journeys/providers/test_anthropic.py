"""The OpenAI SDK, unmodified, in front of a backend that speaks Anthropic's protocol.

JSON and streams, chat and Responses, a loop of tools, structured output, signed thinking through
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
from tests.support.upstream_messages import (
    error_record,
    message,
    refuse_message,
    text_block,
    text_then,
    thinking_block,
    tool_block,
)
from tollkeeper.domain.estimate import estimate_tokens

_PRICES = {
    "prompt": "0.000003",
    "completion": "0.000015",
    "input_cache_read": "0.0000003",
    "input_cache_write": "0.00000375",
    "input_cache_write_1h": "0.000006",
    "web_search": "0.01",
}
_INPUT, _OUTPUT, _READ, _WRITE, _WRITE_1H = 3_000_000, 15_000_000, 300_000, 3_750_000, 6_000_000
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
    "input_tokens": 100,
    "cache_read_input_tokens": 30,
    "cache_creation_input_tokens": 7,
    "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 2},
    "output_tokens": 20,
}
_COST = 100 * _INPUT + 30 * _READ + 5 * _WRITE + 2 * _WRITE_1H + 20 * _OUTPUT
BOTH = pytest.mark.parametrize("streamed", [False, True])


class Payer(pydantic.BaseModel):
    who: str


def _counting(*script: Verb) -> Verb:
    """Answers counts at any time, and calls by the script, in its order."""
    answers = iter(script)

    async def verb(peer: Any) -> None:
        if peer.request.path.endswith("/count_tokens"):
            await message(input_tokens=120)(peer)
        else:
            await next(answers)(peer)

    return verb


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    model = {
        "supported_features": ["tools", "structured_outputs", "reasoning", "web_search"],
        "input_modalities": ["text", "image"],
        "pricing": _PRICES,
        "context_length": 32_768,
        "max_output_length": 8192,
        "tokens_per_image": 4784,
    }
    async with (
        Upstream(message()) as upstream,
        scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            ordinary=message,
            backend={"protocol": "messages", "credential": "x-api-key"},
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
    return [request.json for request in requests if request.path == "/v1/messages"]


@BOTH
async def test_a_chat_program_runs_its_loop_of_tools(
    scripted: ScriptedGateway, streamed: bool
) -> None:
    uses = [
        tool_block("toolu_1", "weather", place="Paris"),
        tool_block("toolu_2", "weather", place="Rome"),
    ]
    scripted.upstream.play(
        _counting(
            message(text_block("I look."), *uses, stop_reason="tool_use", usage=_USAGE),
            message(text_block("Wet and dry."), usage=_USAGE),
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
    assert [tool["name"] for tool in first["tools"]] == ["weather"]
    assert second["messages"][1:] == [
        {"role": "assistant", "content": [text_block("I look."), *uses]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "wet"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "dry"},
            ],
        },
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
    """The signed blocks come back to the provider unchanged, in their order and at their place."""
    thoughts = [
        thinking_block(f"Thought {number}.", f"c2lnbmF0dXJl{number}") for number in range(3)
    ]
    redacted = {"type": "redacted_thinking", "data": "aGlkZGVu"}
    use = tool_block("toolu_1", "weather", place="Paris")
    turns = [
        [thoughts[0], redacted, use],
        [thoughts[1], text_block("It is wet.")],
        [thoughts[2], text_block("Yes.")],
    ]
    scripted.upstream.play(
        _counting(
            message(*turns[0], stop_reason="tool_use", usage=_USAGE),
            message(*turns[1], usage=_USAGE),
            message(*turns[2], usage=_USAGE),
        )
    )
    since = len(scripted.upstream.requests)
    said: list[Any] = [{"role": "user", "content": "The weather in Paris?"}]
    async with _client(scripted) as client:
        said += await _respond(client, said, streamed=streamed)
        said.append({"type": "function_call_output", "call_id": "toolu_1", "output": "wet"})
        said += await _respond(client, said, streamed=streamed)
        said.append({"role": "user", "content": "Sure?"})
        said += await _respond(client, said, streamed=streamed)
    bodies = _calls(scripted, since)
    assert [body["thinking"] for body in bodies] == [{"type": "adaptive"}] * 3
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "wet"}
    assert bodies[2]["messages"] == [
        {"role": "user", "content": [text_block("The weather in Paris?")]},
        {"role": "assistant", "content": turns[0]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": turns[1]},
        {"role": "user", "content": [text_block("Sure?")]},
    ]
    assert bodies[1]["messages"] == bodies[2]["messages"][:3]
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
    thought = thinking_block("Secret.", "c2ln")
    scripted.upstream.play(_counting(message(thought, text_block("Yes.")), message()))
    async with _client(scripted) as client:
        said: list[Any] = [{"role": "user", "content": "Hi"}]
        said += await _respond(client, said, streamed=False)
    since = len(scripted.upstream.requests)
    async with _client(other) as client:
        await _respond(client, [*said, {"role": "user", "content": "Go on."}], streamed=False)
    (body,) = _calls(scripted, since)
    assert "c2ln" not in json.dumps(body)


@BOTH
async def test_structured_output(scripted: ScriptedGateway, streamed: bool) -> None:
    verb = message(text_block('{"who": "the tenant"}'), usage=_USAGE)
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
        schema = body["output_config"]["format"]["schema"]
        assert (schema["required"], schema["additionalProperties"]) == (["who"], False)
    assert (await scripted.balance())["settled"] == 2 * _COST


async def test_the_providers_count_is_exact_and_bounds_the_prompt(
    scripted: ScriptedGateway,
) -> None:
    scripted.upstream.play(_counting(message(usage=_USAGE)))
    counted = await count(scripted)
    assert counted.json() == {"input_tokens": 120}
    assert counted.headers["x-token-count-estimated"] == "false"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    answered = await scripted.chat(messages=[{"role": "user", "content": [image]}])
    entry = await scripted.entry_of(answered)
    assert entry.prompt_tokens_max == 120 + 4784
    assert (entry.cost, (await scripted.balance())["settled"]) == (_COST, _COST)
    usage = answered.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (137, 20)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 30


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"seed": 1}, "seed"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"cache_salt": "s"}, "cache_salt"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
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
    scripted.upstream.play(_counting(refuse_message(529, "overloaded_error")))
    refused = await scripted.chat()
    assert refused.status_code == 502
    assert (await scripted.entry_of(refused)).status == "released"
    cut = stream(text_then(error_record("overloaded_error")))
    scripted.upstream.play(_counting(cut))
    broken = await scripted.chat(stream=True)
    entry = await scripted.entry_of(broken)
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == 12 * _INPUT + max(2, estimate_tokens("0 1 ")) * _OUTPUT
    assert (await scripted.balance())["unsettled"] == 0
