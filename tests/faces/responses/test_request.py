"""Tests the limits and accepted values of all fields of a Responses request, and the param of each error."""

from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.responses_answers import BARE, respond, sent
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.tables import each
from tests.support.upstream import chat

IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}

ACCEPTED: list[dict[str, Any]] = [
    {"input": ""},
    {"input": [{"role": "user", "content": "x"}]},
    {"policy_ids": []},
    {"instructions": "Be brief."},
    {"stream": False},
    {"max_output_tokens": 1},
    {"max_output_tokens": 2048},
    {"temperature": 0},
    {"temperature": 2},
    {"top_p": 0},
    {"top_p": 1},
    {"frequency_penalty": -2},
    {"frequency_penalty": 2},
    {"presence_penalty": -2},
    {"presence_penalty": 2},
    {"tools": []},
    {"tool_choice": "none"},
    {"tool_choice": "auto"},
    {"parallel_tool_calls": True},
    {"include": []},
    {"include": ["message.input_image.image_url"]},
    {"include": ["message.output_text.logprobs"], "top_logprobs": 0},
    {"include": ["message.output_text.logprobs"], "top_logprobs": 20},
    {"include": ["reasoning.encrypted_content"]},
    # Some clients always send `top_logprobs`. Without the `include` value it has no effect.
    *({"top_logprobs": count} for count in (0, 5, 20)),
    {"reasoning": {}},
    *({"reasoning": {"effort": effort}} for effort in ("none", "minimal", "low", "medium")),
    *({"reasoning": {"effort": effort}} for effort in ("high", "xhigh", "max", "ultracode")),
    {"reasoning": {"summary": "auto", "generate_summary": "auto"}},
    {"reasoning": {"summary": "concise"}},
    {"reasoning": {"context": "auto", "mode": "standard"}},
    {"text": {}},
    {"text": {"format": {"type": "text"}}},
    {"text": {"format": {"type": "json_object"}}},
    {"text": {"format": {"type": "json_schema", "name": "n" * 128, "schema": {}}}},
    {
        "text": {
            "format": {
                "type": "json_schema",
                "name": "n",
                "schema": {},
                "description": "d" * 2048,
                "strict": True,
            }
        }
    },
    *({"text": {"verbosity": verbosity}} for verbosity in ("low", "medium", "high")),
    {"truncation": "auto"},
    {"truncation": "disabled"},
    {"metadata": {}},
    {"metadata": {"k" * 64: "v" * 512}},
    {"metadata": {str(at): "" for at in range(16)}},
    *({"service_tier": tier} for tier in ("auto", "default", "flex", "scale", "priority")),
    {"safety_identifier": "s" * 64},
    {"user": "u" * 512},
    {"prompt_cache_key": "k" * 512},
    {"prompt_cache_retention": "in_memory"},
    {"store": False},
    {"background": False},
    {"stream": True, "stream_options": {"include_obfuscation": True}},
]

# For these fields, null means the same as a missing field.
NULLABLE = [
    *("instructions", "stream", "stream_options", "max_output_tokens", "temperature", "top_p"),
    *("frequency_penalty", "presence_penalty", "tools", "tool_choice", "parallel_tool_calls"),
    *("max_tool_calls", "include", "reasoning", "text", "truncation", "top_logprobs", "metadata"),
    *("service_tier", "safety_identifier", "user", "prompt_cache_key", "prompt_cache_retention"),
    *("store", "background", "previous_response_id", "conversation", "prompt"),
    *("context_management", "moderation", "prompt_cache_options", "access_programs", "image"),
    "client_metadata",
]

# Fields of a request, and the param of the 400 response.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model"),
    ({"model": "m" * 201}, "model"),
    ({"model": None}, "model"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": ["x"]}, "input[0]"),
    ({"input": [{}]}, "input[0].type"),
    ({"input": [{"type": "riddle"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"role": "king", "content": ""}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "song"}]}]}, "input[0].content[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input[0].content[0].text",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].image_url",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        "input[0].content[0].file_id",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        "input[0].content[0].file_id",
    ),
    ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
    (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]},
        "input[0].call_id",
    ),
    ({"policy_ids": None}, "policy_ids"),
    ({"policy_ids": [""]}, "policy_ids[0]"),
    ({"policy_ids": ["p" * 121]}, "policy_ids[0]"),
    ({"policy_ids": ["p"] * 1001}, "policy_ids"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 999991}, "max_output_tokens"),
    ({"max_output_tokens": 2049}, "max_output_tokens"),  # the model's own maximum is 2048
    ({"max_output_tokens": 1.5}, "max_output_tokens"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [FUNCTION, {"type": "telepathy"}]}, "tools[1].type"),
    ({"tools": [{"type": "web_search_2031"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{**FUNCTION, "colour": "red"}]}, "tools[0].colour"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
    ({"tools": [{"type": "web_search"}, {"type": "web_search_preview"}]}, "tools[1]"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
    (
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "leap"}},
        "tool_choice.name",
    ),
    ({"tools": [FUNCTION], "tool_choice": {"name": "look"}}, "tool_choice.type"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    (
        {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": []}},
        "tool_choice.tools",
    ),
    (
        {
            "tools": [FUNCTION],
            "tool_choice": {
                "type": "allowed_tools",
                "tools": [{"type": "function", "name": "leap"}],
            },
        },
        "tool_choice.tools[0].name",
    ),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"include": ["web_search_call.results"]}, "include[0]"),
    ({"include": ["web_search_call.action.sources"]}, "include[0]"),
    ({"include": ["everything"]}, "include[0]"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"reasoning": {"effort": "some"}}, "reasoning.effort"),
    ({"reasoning": {"budget": 5}}, "reasoning.budget"),
    (
        {"reasoning": {"summary": "auto", "generate_summary": "concise"}},
        "reasoning.generate_summary",
    ),
    ({"text": {"format": {"type": "poem"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "", "schema": {}}}}, "text.format.name"),
    ({"text": {"verbosity": "endless"}}, "text.verbosity"),
    ({"truncation": "some"}, "truncation"),
    ({"metadata": {"k" * 65: ""}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata[...]"),
    ({"metadata": {str(at): "" for at in range(17)}}, "metadata"),
    ({"metadata": {"k": 5}}, "metadata[...]"),
    ({"service_tier": "fast"}, "service_tier"),
    ({"safety_identifier": "s" * 65}, "safety_identifier"),
    ({"user": "u" * 513}, "user"),
    ({"prompt_cache_key": "k" * 513}, "prompt_cache_key"),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"conversation": {"id": "conv_1"}}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"messages": []}, "messages"),
    ({"n": 2}, "n"),
    ({"moderation": []}, "moderation"),
    ({"context_management": {}}, "context_management"),
    ({"prompt_cache_options": {"ttl": "5m"}}, "prompt_cache_options.ttl"),
    ({"prompt_cache_options": {"x": 1}}, "prompt_cache_options.x"),
    ({"image": {"context_compression": "some"}}, "image.context_compression"),
    ({"client_metadata": "x"}, "client_metadata"),
]

# Fields that need a declared feature or option, sent to a model that declares nothing.
UNDECLARED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 1}, "temperature"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"tools": [FUNCTION]}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}}, "text.format"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "concise"}}, "reasoning.summary"),
    ({"reasoning": {"effort": "none", "summary": "detailed"}}, "reasoning.summary"),
    ({"include": ["message.output_text.logprobs"]}, "include[0]"),
    ({"tools": [{"type": "web_search", "external_web_access": True}]}, "tools[0]"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION]}]}, "tools"),
    ({"prompt_cache_options": {"ttl": "12h"}}, "prompt_cache_options.ttl"),
    ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options.mode"),
    ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
    (
        {"prompt_cache_options": {"comparison_response_id": "resp_1"}},
        "prompt_cache_options.comparison_response_id",
    ),
    ({"service_tier": "flex"}, "service_tier"),
    ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    ({"max_tool_calls": 1}, "max_tool_calls"),
    ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "A"}]}]},
        "input[0].content[0]",
    ),
]

# Fields that no chat backend supports, sent to the model that declares everything.
UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"include": ["code_interpreter_call.outputs"]}, "include[0]"),
    ({"include": ["computer_call_output.output.image_url"]}, "include[0]"),
    ({"include": ["message.input_image.image_url", "file_search_call.results"]}, "include[1]"),
    *(
        ({"tools": [FUNCTION, {"type": kind}]}, "tools[1]")
        for kind in ("file_search", "computer_use_preview", "mcp", "code_interpreter", "custom")
    ),
    ({"tools": [{**FUNCTION, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [{**FUNCTION, "async": True}]}, "tools[0].async"),
    (
        {"tools": [{"type": "web_search", "filters": {"allowed_domains": ["a"]}}]},
        "tools[0].filters",
    ),
    *(
        (
            {"tools": [{"type": "web_search", "external_web_access": False}], "tool_choice": way},
            "tools[0].external_web_access",
        )
        for way in (
            "required",
            {"type": "web_search"},
            {"type": "allowed_tools", "tools": [{"type": "web_search"}]},
        )
    ),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"moderation": {}}, "moderation"),
    ({"moderation": {"model": "omni-moderation-latest"}}, "moderation"),
    ({"access_programs": {"cyber": "standard"}}, "access_programs"),
    ({"image": {"context_compression": "enabled"}}, "image.context_compression"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "custom", "name": "x"}}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "mcp"}}, "tool_choice"),
    ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://a"}]}]},
        "input[0].content[0].file_url",
    ),
    ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
]


# Values that request no feature, sent to a model that declares nothing. No backend gets them.
ASKS_FOR_NOTHING: list[dict[str, Any]] = [
    {"reasoning": {}},
    {"reasoning": {"effort": "none"}},
    {"reasoning": {"summary": "auto"}},
    {"reasoning": {"generate_summary": "auto", "context": "auto", "mode": "standard"}},
    {"include": ["reasoning.encrypted_content"]},
    {"tools": [{"type": "web_search", "external_web_access": False}]},
    {"tools": [{"type": "web_search", "external_web_access": False}], "tool_choice": "auto"},
    {"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": []}]},
    {"client_metadata": {}},
    {"client_metadata": {"thread_id": "t", "nested": {"a": [1]}}},
    {"context_management": []},
    {"prompt_cache_options": {}},
    {"prompt_cache_options": {"mode": "implicit", "ttl": "30m", "prewarm": False}},
    {"access_programs": {}},
    {"image": {"context_compression": "auto"}},
    {"image": {"context_compression": "disabled"}},
]


def _name(value: object) -> str | None:
    return str(value)[:60] if isinstance(value, dict) else None


@pytest.fixture(scope="module")
async def shared(shared_scripted: ScriptedGateway) -> ScriptedGateway:
    """Returns one tenant for all tests, because none of them checks the ledger."""
    shared_scripted.upstream.play(chat())
    return await shared_scripted.with_tenant()


@each("fields", ACCEPTED, ids=_name)
async def test_accepted(shared: ScriptedGateway, fields: dict[str, Any]) -> None:
    await sent(shared, **fields)


async def test_null_is_omitted(shared: ScriptedGateway) -> None:
    assert await sent(shared, **dict.fromkeys(NULLABLE)) == await sent(shared)


@each("fields", ASKS_FOR_NOTHING, ids=_name)
async def test_what_asks_for_nothing_is_dropped(
    shared: ScriptedGateway, fields: dict[str, Any]
) -> None:
    assert await sent(shared, model=BARE, **fields) == await sent(shared, model=BARE)


@each(("fields", "param"), REFUSED, ids=_name)
async def test_refused(shared: ScriptedGateway, fields: dict[str, Any], param: str) -> None:
    calls = len(shared.upstream.requests)
    answer = await respond(shared, **fields)
    assert_error(answer, 400, "invalid_request", param)
    assert len(shared.upstream.requests) == calls


@each(("fields", "param"), UNDECLARED, ids=_name)
async def test_undeclared(shared: ScriptedGateway, fields: dict[str, Any], param: str) -> None:
    assert_error(await respond(shared, model=BARE, **fields), 501, "not_implemented", param)


@each(("fields", "param"), UNSUPPORTED, ids=_name)
async def test_unsupported(shared: ScriptedGateway, fields: dict[str, Any], param: str) -> None:
    assert_error(await respond(shared, **fields), 501, "not_implemented", param)


async def test_missing_fields(shared: ScriptedGateway) -> None:
    for body, param in (({"input": ""}, "model"), ({"model": "m"}, "input")):
        answer = await shared.gateway.client.post(
            "/v1/responses", json=body, headers=shared.tenant.as_customer
        )
        assert_error(answer, 400, "invalid_request", param)


async def test_unknown_model(shared: ScriptedGateway) -> None:
    assert_error(await respond(shared, model="nobody"), 404, "model_not_found", "model")


@each("length", [0, 513])
async def test_session_header_is_bounded(shared: ScriptedGateway, length: int) -> None:
    headers = {**shared.tenant.as_customer, "X-Service-Session-ID": "s" * length}
    answer = await respond(shared, headers=headers)
    assert_error(answer, 400, "invalid_request", "X-Service-Session-ID")


async def test_other_content_type(shared: ScriptedGateway) -> None:
    answer = await shared.gateway.client.post(
        "/v1/responses",
        content=b"{}",
        headers={**shared.tenant.as_customer, "Content-Type": "text/plain"},
    )
    assert_error(answer, 415, "unsupported_media_type")
