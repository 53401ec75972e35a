"""Tests how the input of a Responses request is translated for a chat backend."""

from typing import Any

from tests.support.gateway import Tenant
from tests.support.responses_answers import BARE, both, respond, sent
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.upstream import chat

USER = {"role": "user", "content": "Go on."}
CHAT_CALL_1 = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHAT_CALL_2 = {"id": "c2", "type": "function", "function": {"name": "leap", "arguments": "[1]"}}
CALL_1 = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
CALL_2 = {"type": "function_call", "call_id": "c2", "name": "leap", "arguments": "[1]"}
OUTPUT_1 = {"type": "function_call_output", "call_id": "c1", "output": "a lake"}
OUTPUT_2 = {"type": "function_call_output", "call_id": "c2", "output": "a splash"}
TOOL_1 = {"role": "tool", "tool_call_id": "c1", "content": "a lake"}
TOOL_2 = {"role": "tool", "tool_call_id": "c2", "content": "a splash"}


def echo(*texts: str) -> dict[str, Any]:
    """Returns the message of an answer as a client sends it back."""
    content = [
        {"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts
    ]
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def reasoning(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}


def thought(text: str) -> dict[str, str]:
    """Returns the reasoning text under both field names that chat backends use."""
    return {"reasoning": text, "reasoning_content": text}


async def messages(
    scripted: ScriptedGateway, *items: dict[str, Any], **fields: Any
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await sent(scripted, input=list(items), **fields))["messages"]
    return found


async def test_text_is_a_user_message(scripted: ScriptedGateway) -> None:
    request = await sent(scripted, input="Hi", instructions="Be brief.")
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert request["model"] == "upstream-chat"
    assert request["max_tokens"] == 1024
    assert request["stream"] is False


async def test_bound_that_was_asked_for(scripted: ScriptedGateway) -> None:
    assert (await sent(scripted, max_output_tokens=7))["max_tokens"] == 7


async def test_easy_messages_of_every_role(scripted: ScriptedGateway) -> None:
    easy = [
        {"role": role, "content": f"I am the {role}."}
        for role in ("system", "developer", "user", "assistant", "user")
    ]
    assert await messages(scripted, *easy) == easy
    assert await messages(scripted, *({"type": "message", **item} for item in easy)) == easy


async def test_parts(scripted: ScriptedGateway) -> None:
    parts = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "https://a.example/b.png", "detail": "low"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"},
    ]
    [message] = await messages(scripted, {"role": "user", "content": parts})
    assert message["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {
            "type": "file",
            "file": {"file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"},
        },
    ]


async def test_one_text_part_is_a_string(scripted: ScriptedGateway) -> None:
    part = {"type": "input_text", "text": "Hi"}
    assert await messages(scripted, {"role": "user", "content": [part]}) == [
        {"role": "user", "content": "Hi"}
    ]


async def test_echoed_answer(scripted: ScriptedGateway) -> None:
    refusal = {**echo(), "content": [{"type": "refusal", "refusal": "I will not."}]}
    assert await messages(scripted, echo("Hello", "you."), USER, refusal, USER) == [
        {"role": "assistant", "content": "Hello\nyou."},
        USER,
        {"role": "assistant", "content": "I will not."},
        USER,
    ]


async def test_two_answers_stay_two(scripted: ScriptedGateway) -> None:
    assert await messages(scripted, echo("One."), echo("Two."), USER) == [
        {"role": "assistant", "content": "One."},
        {"role": "assistant", "content": "Two."},
        USER,
    ]


async def test_parallel_calls_are_one_message(scripted: ScriptedGateway) -> None:
    assert await messages(scripted, USER, CALL_1, CALL_2, OUTPUT_2, OUTPUT_1) == [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL_1, CHAT_CALL_2]},
        TOOL_2,
        TOOL_1,
    ]


async def test_calls_one_after_the_other(scripted: ScriptedGateway) -> None:
    assert await messages(scripted, USER, CALL_1, OUTPUT_1, CALL_2, OUTPUT_2, USER) == [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL_1]},
        TOOL_1,
        {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL_2]},
        TOOL_2,
        USER,
    ]


async def test_text_before_and_after_calls_is_of_the_same_message(
    scripted: ScriptedGateway,
) -> None:
    both_sides = await messages(scripted, echo("Let me"), CALL_1, echo("see."), CALL_2, OUTPUT_1)
    assert both_sides == [
        {
            "role": "assistant",
            "content": "Let me\nsee.",
            "tool_calls": [CHAT_CALL_1, CHAT_CALL_2],
        },
        TOOL_1,
    ]


async def test_output_in_parts(scripted: ScriptedGateway) -> None:
    text = {"type": "input_text", "text": "a lake"}
    image = {"type": "input_image", "image_url": "https://a.example/lake.png"}
    [_, only_text] = await messages(scripted, CALL_1, {**OUTPUT_1, "output": [text]})
    assert only_text == TOOL_1
    [_, with_image] = await messages(scripted, CALL_1, {**OUTPUT_1, "output": [text, image]})
    assert with_image["content"] == [
        {"type": "text", "text": "a lake"},
        {"type": "image_url", "image_url": {"url": "https://a.example/lake.png"}},
    ]


async def test_reasoning_goes_back_with_its_answer(scripted: ScriptedGateway) -> None:
    items = [reasoning("Hm."), echo("Yes."), USER, reasoning("So."), CALL_1, OUTPUT_1]
    assert await messages(scripted, *items) == [
        {"role": "assistant", "content": "Yes.", **thought("Hm.")},
        USER,
        {"role": "assistant", "content": None, **thought("So."), "tool_calls": [CHAT_CALL_1]},
        TOOL_1,
    ]


async def test_reasoning_between_parallel_calls(scripted: ScriptedGateway) -> None:
    items = [reasoning("A"), CALL_1, reasoning("B"), CALL_2, OUTPUT_1, OUTPUT_2]
    [answer, *_] = await messages(scripted, *items)
    assert answer["tool_calls"] == [CHAT_CALL_1, CHAT_CALL_2]
    assert answer["reasoning"] == "A\nB"


async def test_reasoning_without_an_answer_is_dropped(scripted: ScriptedGateway) -> None:
    assert await messages(scripted, reasoning("Hm."), USER) == [USER]


async def test_summary_stands_in_for_reasoning(scripted: ScriptedGateway) -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "In short."}]}
    [answer, _] = await messages(scripted, item, echo("Yes."), USER)
    assert answer["reasoning"] == "In short."


async def test_model_that_does_not_reason_gets_no_reasoning(scripted: ScriptedGateway) -> None:
    assert await messages(scripted, reasoning("Hm."), echo("Yes."), USER, model=BARE) == [
        {"role": "assistant", "content": "Yes."},
        USER,
    ]


async def test_sealed_reasoning_comes_back(
    scripted: ScriptedGateway, shared_scripted: ScriptedGateway
) -> None:
    scripted.upstream.play(both({"content": "Yes.", "reasoning": "A secret thought."}))
    answer = await respond(scripted, include=["reasoning.encrypted_content"])
    item = answer.json()["output"][0]
    assert "secret" not in item["encrypted_content"]
    kept = {key: value for key, value in item.items() if key != "content"}
    scripted.upstream.play(chat())
    [restored, _] = await messages(scripted, kept, echo("Yes."), USER)
    assert restored == {"role": "assistant", "content": "Yes.", **thought("A secret thought.")}
    # The gateway ignores reasoning that was sealed for another project or not by the gateway.
    other = await shared_scripted.with_tenant()
    foreign = {**kept, "encrypted_content": "gAAAAAB-not-ours"}
    for tenant, sealed in ((other, kept), (scripted, foreign)):
        [plain, _] = await messages(tenant, sealed, echo("Yes."), USER)
        assert plain == {"role": "assistant", "content": "Yes."}


async def test_fields_that_travel(scripted: ScriptedGateway) -> None:
    request = await sent(
        scripted,
        user="u",
        safety_identifier="s",
        metadata={"a": "b"},
        temperature=0.5,
        top_p=0.25,
        presence_penalty=1,
        frequency_penalty=-1,
        service_tier="flex",
        reasoning={"effort": "high", "summary": "detailed"},
        text={"verbosity": "low"},
        include=["message.output_text.logprobs"],
        top_logprobs=3,
    )
    expected = {
        "user": "u",
        "safety_identifier": "s",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.25,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "service_tier": "flex",
        "reasoning_effort": "high",
        "reasoning_summary": "detailed",
        "chat_template_kwargs": {"verbosity": "low"},
        "logprobs": True,
        "top_logprobs": 3,
    }
    assert {name: request[name] for name in expected} == expected


async def test_formats(scripted: ScriptedGateway) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = await sent(scripted, text={"format": {"type": "json_object"}})
    assert request["response_format"] == {"type": "json_object"}
    wanted = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    request = await sent(scripted, text={"format": wanted})
    assert request["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert "response_format" not in await sent(scripted, text={"format": {"type": "text"}})


async def test_cache_key_never_leaves_as_it_is(
    scripted: ScriptedGateway, shared_scripted: ScriptedGateway
) -> None:
    first = await sent(scripted, prompt_cache_key="mine")
    assert first["prompt_cache_key"] != "mine"
    assert (await sent(scripted, prompt_cache_key="mine"))["prompt_cache_key"] == (
        first["prompt_cache_key"]
    )
    other = await shared_scripted.with_tenant()
    assert (await sent(other, prompt_cache_key="mine"))["prompt_cache_key"] != (
        first["prompt_cache_key"]
    )


async def test_header_key_is_as_good_as_bearer(scripted: ScriptedGateway) -> None:
    tenant: Tenant = scripted.tenant
    answer = await respond(scripted, headers={"x-api-key": tenant.project_key})
    assert answer.status_code == 200
