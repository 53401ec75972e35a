"""Tests a backend that uses Responses, called over chat and Responses: answers, options and charges."""

import json
from typing import Any

import pytest

from tests.journeys.responses.native import BOTH, PROTOCOLS, ask, said
from tests.support.gateway import assert_error
from tests.support.responses_answers import read_events, respond, sent
from tests.support.scripted_gateway import (
    COMPLETION_PRICE,
    COST,
    PROMPT_PRICE,
    ScriptedGateway,
    read_stream,
)
from tests.support.upstream_responses import respond as responding
from tests.support.upstream_wire import call_item, message_item, reasoning_item, refusal_item

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
CACHE_PRICE = 50_000  # picousd per token
CACHED_USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 130,
}


@BOTH
@PROTOCOLS
async def test_an_answer_and_its_price(
    native: ScriptedGateway, protocol: str, streamed: bool
) -> None:
    found = await ask(native, protocol, stream=streamed)
    assert said(found, protocol, streamed=streamed) == "Hello"
    entry = await native.entry_of(found)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)
    assert (await native.balance())["settled"] == COST
    request = native.upstream.requests[-1]
    assert request.path == "/v1/responses"
    assert request.json["input"] == [{"type": "message", "role": "user", "content": "Hello"}]
    assert request.json["stream"] is streamed
    assert request.json["store"] is False


@BOTH
@PROTOCOLS
async def test_cached_tokens_have_their_own_price(
    native: ScriptedGateway, protocol: str, streamed: bool
) -> None:
    native.upstream.play(responding(usage=CACHED_USAGE))
    found = await ask(native, protocol, stream=streamed)
    entry = await native.entry_of(found)
    assert entry.cost == 36 * PROMPT_PRICE + 64 * CACHE_PRICE + 30 * COMPLETION_PRICE
    if not streamed:
        usage = found.json()["usage"]
        name = "prompt" if protocol == "chat" else "input"
        assert usage[f"{name}_tokens_details"]["cached_tokens"] == 64
        name = "completion" if protocol == "chat" else "output"
        assert usage[f"{name}_tokens_details"]["reasoning_tokens"] == 20


@BOTH
async def test_calls_and_reasoning_as_chat(native: ScriptedGateway, streamed: bool) -> None:
    items = [reasoning_item("Hm."), call_item("c1", "look", "{}"), call_item("c2", "look", "[]")]
    native.upstream.play(responding(*items))
    nested = {"type": "function", "function": {"name": "look"}}
    found = await native.chat(stream=streamed, tools=[nested])
    if streamed:
        chunks = [choice for chunk in read_stream(found.text).chunks for choice in chunk["choices"]]
        reasoning = "".join(choice["delta"].get("reasoning") or "" for choice in chunks)
        calls: dict[int, list[str]] = {}
        for choice in chunks:
            for piece in choice["delta"].get("tool_calls", ()):
                told = calls.setdefault(piece["index"], [piece.get("id", ""), ""])
                told[1] += piece["function"]["arguments"]
        finish = chunks[-1]["finish_reason"]
        told_calls = [tuple(calls[index]) for index in sorted(calls)]
    else:
        [choice] = found.json()["choices"]
        reasoning, finish = choice["message"]["reasoning"], choice["finish_reason"]
        told_calls = [
            (call["id"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]
        ]
    assert reasoning == "Hm."
    assert told_calls == [("c1", "{}"), ("c2", "[]")]
    assert finish == "tool_calls"


@BOTH
async def test_calls_and_reasoning_as_responses(native: ScriptedGateway, streamed: bool) -> None:
    items = [reasoning_item("Hm."), message_item("So."), call_item("c1", "look", "{}")]
    native.upstream.play(responding(*items))
    found = await respond(native, stream=streamed, tools=[LOOK])
    output = (
        found.json()["output"]
        if not streamed
        else read_events(found.text)[0][-1]["response"]["output"]
    )
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert (output[2]["call_id"], output[2]["name"], output[2]["arguments"]) == ("c1", "look", "{}")
    assert native.upstream.requests[-1].json["tools"] == [LOOK]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
    ],
    ids=["word", "named", "allowed"],
)
async def test_a_forced_search(native: ScriptedGateway, choice: object) -> None:
    tools = [{"type": "web_search"}]
    found = await respond(native, tools=tools, tool_choice=choice)
    assert found.status_code == 200, found.text
    assert found.json()["tool_choice"] == choice
    request = native.upstream.requests[-1].json
    assert (request["tools"], request["tool_choice"]) == (tools, "required")


@BOTH
async def test_refusal(native: ScriptedGateway, streamed: bool) -> None:
    native.upstream.play(responding(refusal_item("I will not.")))
    found = await native.chat(stream=streamed)
    if streamed:
        chunks = read_stream(found.text).chunks
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "".join(delta.get("refusal", "") for delta in deltas) == "I will not."
    else:
        assert found.json()["choices"][0]["message"]["refusal"] == "I will not."


@BOTH
@PROTOCOLS
@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter")],
)
async def test_incomplete(
    native: ScriptedGateway, protocol: str, streamed: bool, reason: str, finish: str
) -> None:
    native.upstream.play(responding(status="incomplete", incomplete_details={"reason": reason}))
    found = await ask(native, protocol, stream=streamed)
    assert said(found, protocol, streamed=streamed) == "Hello"
    assert (await native.entry_of(found)).cost == COST
    if protocol == "responses":
        ended = read_events(found.text)[0][-1]["response"] if streamed else found.json()
        assert ended["status"] == "incomplete"
        assert ended["incomplete_details"] == {"reason": reason}
    elif streamed:
        assert read_stream(found.text).chunks[-1]["choices"][0]["finish_reason"] == finish
    else:
        assert found.json()["choices"][0]["finish_reason"] == finish


async def test_several_choices(native: ScriptedGateway) -> None:
    found = await native.chat(n=3)
    assert [choice["message"]["content"] for choice in found.json()["choices"]] == ["Hello"] * 3
    entry = await native.entry_of(found)
    assert (entry.choices, entry.cost) == (3, 3 * (7 * PROMPT_PRICE + 3 * COMPLETION_PRICE))


async def test_log_probabilities(native: ScriptedGateway) -> None:
    found = [{"token": "Hello", "logprob": -0.25, "bytes": None, "top_logprobs": []}]
    native.upstream.play(responding(message_item("Hello", logprobs=found)))
    chat = await native.chat(logprobs=True, top_logprobs=2)
    assert chat.json()["choices"][0]["logprobs"]["content"] == found
    request = native.upstream.requests[-1].json
    assert request["include"] == ["message.output_text.logprobs"]
    assert request["top_logprobs"] == 2
    answered = await respond(native, include=["message.output_text.logprobs"])
    [token] = answered.json()["output"][0]["content"][0]["logprobs"]
    assert (token["token"], token["logprob"]) == ("Hello", -0.25)


async def test_what_responses_ask_reaches_its_place(native: ScriptedGateway) -> None:
    request = await sent(
        native,
        instructions="Be brief.",
        temperature=0.5,
        metadata={"a": "b"},
        safety_identifier="s",
        reasoning={"effort": "high", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "json_object"}},
        max_tool_calls=3,
        max_output_tokens=77,
        prompt_cache_key="mine",
    )
    assert request["instructions"] == "Be brief."
    assert request["reasoning"] == {"effort": "high", "summary": "auto"}
    assert request["text"] == {"format": {"type": "json_object"}, "verbosity": "low"}
    assert request["max_output_tokens"] == 77
    assert (request["temperature"], request["max_tool_calls"]) == (0.5, 3)
    assert (request["metadata"], request["safety_identifier"]) == ({"a": "b"}, "s")
    assert request["prompt_cache_key"] not in ("mine", "")


async def test_what_chat_asks_reaches_its_place(native: ScriptedGateway) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    found = await native.chat(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look."}, picture]},
        ],
        verbosity="low",
        reasoning_effort="high",
        response_format={"type": "json_object"},
        max_completion_tokens=77,
        top_p=0.5,
        user="u",
    )
    assert found.status_code == 200, found.text
    request = native.upstream.requests[-1].json
    assert request["instructions"] == "Be brief."
    assert [part["type"] for part in request["input"][0]["content"]] == [
        *("input_text", "input_image"),
    ]
    assert request["text"] == {"format": {"type": "json_object"}, "verbosity": "low"}
    assert request["reasoning"] == {"effort": "high"}
    assert (request["max_output_tokens"], request["top_p"], request["user"]) == (77, 0.5, "u")
    assert not {"messages", "max_completion_tokens", "n", "stream_options"} & set(request)


@BOTH
async def test_functions_of_the_old_kind(native: ScriptedGateway, streamed: bool) -> None:
    native.upstream.play(responding(call_item("c", "look", "{}")))
    found = await native.chat(functions=[{"name": "look"}], stream=streamed)
    if streamed:
        chunks = [choice for chunk in read_stream(found.text).chunks for choice in chunk["choices"]]
        called = [choice["delta"].get("function_call", {}) for choice in chunks]
        assert "".join(piece.get("name", "") for piece in called) == "look"
        assert "".join(piece.get("arguments", "") for piece in called) == "{}"
        assert chunks[-1]["finish_reason"] == "function_call"
    else:
        [choice] = found.json()["choices"]
        assert choice["message"]["function_call"] == {"name": "look", "arguments": "{}"}
        assert choice["finish_reason"] == "function_call"


# Chat requests that the Responses protocol cannot express, although the model declares the fields.
CHAT_UNCARRIED: list[tuple[dict[str, Any], str]] = [
    ({"stop": ["x"]}, "stop"),
    ({"seed": 7}, "seed"),
    ({"logit_bias": {"1": 1}}, "logit_bias"),
    ({"frequency_penalty": 1}, "frequency_penalty"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"cache_salt": "x"}, "cache_salt"),
    ({"thinking": True}, "thinking"),
    ({"service_tier": "flex"}, "service_tier"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "A"}}]}
            ]
        },
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "user", "content": "Hi", "name": "Ann"}]}, "messages[0].name"),
    ({"tools": [{"type": "custom", "custom": {"description": "x"}}]}, "tools[0]"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_UNCARRIED, ids=lambda value: str(value)[:40])
async def test_what_the_protocol_cannot_carry(
    native: ScriptedGateway, fields: dict[str, Any], param: str
) -> None:
    before = len(native.upstream.requests)
    assert_error(await native.chat(**fields), 501, "not_implemented", param)
    assert len(native.upstream.requests) == before
    balance = await native.balance()
    assert (balance["held"], balance["settled"]) == (0, 0)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
async def test_penalties_of_responses(native: ScriptedGateway, name: str) -> None:
    assert_error(await respond(native, **{name: 1}), 501, "not_implemented", name)


async def test_the_model_says_what_it_takes(native: ScriptedGateway) -> None:
    model = native.gateway.services.catalog.catalog.models[0]
    assert model.supported_sampling_parameters == ("temperature", "top_p")
    assert model.input_modalities == ("text", "image", "file")


# The tests below use reasoning that only the backend can read.


@BOTH
async def test_what_the_backend_sealed_comes_back_to_it(
    native: ScriptedGateway, streamed: bool
) -> None:
    items = [reasoning_item("Hm.", encrypted_content="theirs"), call_item("c1", "look", "{}")]
    native.upstream.play(responding(*items))
    asked: dict[str, Any] = {
        "tools": [LOOK],
        "include": ["reasoning.encrypted_content"],
        "stream": streamed,
    }
    first = await respond(native, **asked)
    assert native.upstream.requests[-1].json["include"] == ["reasoning.encrypted_content"]
    output = (
        first.json()["output"]
        if not streamed
        else read_events(first.text)[0][-1]["response"]["output"]
    )
    # The gateway encrypts the value: clients cannot forge it, and other projects cannot use it.
    assert "theirs" not in json.dumps(output)
    native.upstream.play(responding())
    result = {"type": "function_call_output", "call_id": "c1", "output": "7"}
    history = [{"role": "user", "content": "Look."}, *output, result]
    second = await respond(native, input=history, **asked)
    assert second.status_code == 200, second.text
    sent_back = native.upstream.requests[-1].json["input"]
    assert [item["type"] for item in sent_back] == [
        *("message", "reasoning", "function_call", "function_call_output"),
    ]
    assert sent_back[1]["encrypted_content"] == "theirs"
    stranger = await native.with_tenant()
    assert (await respond(stranger, input=history, **asked)).status_code == 200
    assert "theirs" not in native.upstream.requests[-1].body.decode()


async def test_sealed_reasoning_that_was_not_asked_for_is_not_told(native: ScriptedGateway) -> None:
    native.upstream.play(responding(reasoning_item("Hm.", encrypted_content="theirs")))
    found = await respond(native)
    assert "encrypted_content" not in found.json()["output"][0]
    assert "include" not in native.upstream.requests[-1].json
