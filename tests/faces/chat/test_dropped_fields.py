"""Tests that fields of chat requests that have no effect are accepted and never sent to a backend."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import MODEL, ScriptedGateway, answering_gateway, chat_body
from tests.support.tables import each

MESSAGES = [{"role": "user", "content": "Hello"}]
REASONING = "example/reasoning"
SWITCHED = "example/switched"
_SWITCHES = {
    "thinking": "chat_template_kwargs.enable_thinking",
    "reasoning.enabled": "chat_template_kwargs.reasoning",
}


@pytest.fixture(scope="module")
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Runs a gateway with a model that only supports tools, a model that only supports reasoning, and a
    model whose settings name fields that turn reasoning off."""
    async with answering_gateway(
        data_dir,
        conninfo,
        model={"supported_features": ["tools"]},
        more_models=[
            {"id": REASONING, "supported_features": ["reasoning"]},
            {"id": SWITCHED, "supported_features": [], "options": _SWITCHES},
        ],
    ) as running:
        yield running


async def sent_upstream(scripted: ScriptedGateway, **fields: Any) -> dict[str, Any]:
    answer = await scripted.chat(**fields)
    assert answer.status_code == 200, answer.text
    return scripted.upstream.requests[-1].json


@each(
    "fields",
    [{"reasoning_effort": "none"}, {"reasoning": {"effort": "none"}}],
    ids=str,
)
async def test_no_effort_asks_a_model_without_reasoning_for_nothing(
    scripted: ScriptedGateway, fields: dict[str, Any]
) -> None:
    plain = await sent_upstream(scripted, model=MODEL)
    assert await sent_upstream(scripted, model=MODEL, **fields) == plain
    # A model with reasoning gets the field, because it may reason without being asked to.
    assert (await sent_upstream(scripted, model=REASONING, **fields))["reasoning_effort"] == "none"


@each(
    "fields",
    [
        {"thinking": False},
        {"include_reasoning": False},
        *({"reasoning": {name: value}} for name, value in (("enabled", False), ("exclude", True))),
        {"reasoning": {"exclude": False}},
        {"reasoning": {"enabled": False, "effort": "none", "exclude": True}, "thinking": False},
    ],
    ids=str,
)
async def test_turning_reasoning_off_asks_a_model_without_it_for_nothing(
    scripted: ScriptedGateway, fields: dict[str, Any]
) -> None:
    plain = await sent_upstream(scripted, model=MODEL)
    assert await sent_upstream(scripted, model=MODEL, **fields) == plain


async def test_reasoning_is_turned_off_where_the_settings_say_how(
    scripted: ScriptedGateway,
) -> None:
    fields = {"reasoning": {"enabled": False}, "thinking": False}
    sent = await sent_upstream(scripted, model=SWITCHED, **fields)
    assert sent["chat_template_kwargs"] == {"enable_thinking": False, "reasoning": False}


@each("reasoning", [{}, {"effort": None}, {"enabled": None, "max_tokens": None}], ids=str)
async def test_reasoning_without_a_value_counts_as_omitted(
    scripted: ScriptedGateway, reasoning: dict[str, Any]
) -> None:
    for model in (MODEL, REASONING):
        plain = await sent_upstream(scripted, model=model)
        assert await sent_upstream(scripted, model=model, reasoning=reasoning) == plain


@pytest.fixture
async def replaying(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Runs a gateway whose operator accepts what LiteLLM's SDK adds to messages."""
    accepting = {"accept_provider_specific_fields": True}
    async with answering_gateway(data_dir, conninfo, conventions=accepting) as running:
        yield running


@each("kept", [None, {}, {"refusal": None}])
async def test_a_message_has_no_other_properties_by_default(
    scripted: ScriptedGateway, kept: Any
) -> None:
    message = {"role": "assistant", "content": "Hello", "provider_specific_fields": kept}
    answer = await scripted.chat(messages=[*MESSAGES, message])
    assert_error(answer, 400, "invalid_request", "messages[1].provider_specific_fields")


async def test_tool_calls_are_free_objects_by_default(scripted: ScriptedGateway) -> None:
    function = {"name": "f", "arguments": "{}", "provider_specific_fields": {"a": 1}}
    call = {"id": "c", "type": "function", "provider_specific_fields": None}
    message = {"role": "assistant", "tool_calls": [{**call, "function": function}]}
    sent = await sent_upstream(scripted, messages=[*MESSAGES, message])
    (sent_call,) = sent["messages"][1]["tool_calls"]
    assert sent_call == {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }


async def test_other_properties_stay_refused_where_litellms_is_accepted(
    replaying: ScriptedGateway,
) -> None:
    kept: dict[str, Any] = {"provider_specific_fields": {}, "provider_fields": {}}
    answer = await replaying.chat(messages=[{**MESSAGES[0], **kept}])
    assert_error(answer, 400, "invalid_request", "messages[0].provider_fields")
    assert (await sent_upstream(replaying))["messages"] == MESSAGES


async def test_what_litellm_keeps_for_itself_stays_here(replaying: ScriptedGateway) -> None:
    scripted = replaying
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    kept = {"refusal": None, "reasoning": "Hm."}
    replayed = {
        "role": "assistant",
        "content": None,
        "provider_specific_fields": kept,
        "tool_calls": [
            {
                **call,
                "provider_specific_fields": kept,
                "function": {"name": "f", "arguments": "{}", "provider_specific_fields": None},
            }
        ],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "ok"}
    clean = {"role": "assistant", "content": None, "tool_calls": [call]}
    for answered in (replayed, {**clean, "provider_specific_fields": None}):
        sent = await sent_upstream(scripted, messages=[*MESSAGES, answered, result])
        assert sent["messages"] == [*MESSAGES, clean, result]
    # Escapes in a field's name must not hide the field's text from the policies.
    body = json.dumps(chat_body(messages=[*MESSAGES, replayed, result]))
    for name in ("provider_specific_fields", "tool_calls"):
        body = body.replace(f'"{name}"', '"' + "".join(f"\\u{ord(c):04x}" for c in name) + '"')
    answer = await scripted.gateway.client.post(
        "/v1/chat/completions",
        content=body,
        headers={**scripted.tenant.as_customer, "content-type": "application/json"},
    )
    assert answer.status_code == 200, answer.text
    assert scripted.upstream.requests[-1].json["messages"] == [*MESSAGES, clean, result]
