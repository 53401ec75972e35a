"""Tests how the wire encodes calls as Messages requests."""

import base64
from typing import Any

import pytest

from tests.providers.anthropic.calls import behaving, sent_for
from tests.support.tables import each
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.messages_behavior import PromptCaching, ThinkingStyle

_PNG = "data:image/png;base64,iVBORw0KGgo="
_PDF = "data:application/pdf;base64,JVBERi0="
_MARK = {"type": "ephemeral"}


def _user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def _text(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def _says(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _function(name: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def test_the_smallest_request() -> None:
    assert sent_for() == {
        "model": "upstream-model",
        "messages": [_user(_text("Hi"))],
        "max_tokens": 1024,
        "stream": False,
    }


def test_system_texts_that_come_first_are_the_system() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        _says("Hi"),
        {"role": "system", "content": "Be brief again."},
        _says("Ho"),
    ]
    body = sent_for(messages=messages)
    assert body["system"] == [_text("Be brief."), _text("Be kind.")]
    assert body["messages"] == [
        _user(_text("Hi")),
        {"role": "system", "content": [_text("Be brief again.")]},
        _user(_text("Ho")),
    ]
    assert sent_for(messages=messages[:1])["messages"] == [_user(_text("Be brief."))]


def test_results_of_parallel_calls_are_one_message() -> None:
    def call(number: int, arguments: str) -> dict[str, Any]:
        function = {"name": "weather", "arguments": arguments}
        return {"id": f"toolu_{number}", "type": "function", "function": function}

    def result(number: int, content: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": f"toolu_{number}", "content": content}

    body = sent_for(
        messages=[
            _says("Paris and Rome?"),
            {
                "role": "assistant",
                "content": "I look.",
                "reasoning_content": "Unsigned, so it has no place.",
                "tool_calls": [call(1, '{"place": "Paris"}'), call(2, "")],
            },
            result(1, "wet"),
            result(2, ""),
            _says("And?"),
        ],
        tools=[_function()],
    )
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                _text("I look."),
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "weather",
                    "input": {"place": "Paris"},
                },
                {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {}},
            ],
        },
        _user(
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "wet"},
            {"type": "tool_result", "tool_use_id": "toolu_2"},
            _text("And?"),
        ),
    ]


def test_ids_of_other_providers_are_replaced_alike() -> None:
    call = {"id": "functions.f:0", "function": {"name": "f", "arguments": "{}"}}
    body = sent_for(
        messages=[
            _says("Hi"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"},
        ]
    )
    used, result = body["messages"][1]["content"][0], body["messages"][2]["content"][0]
    assert used["id"] == result["tool_use_id"]
    assert used["id"].removeprefix("call_").isalnum()


def test_legacy_functions() -> None:
    body = sent_for(
        messages=[
            _says("Hi"),
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "f", "arguments": '{"a": 1}'},
            },
            {"role": "function", "name": "f", "content": "1"},
        ],
        functions=[{"name": "f"}],
    )
    used, result = body["messages"][1]["content"][0], body["messages"][2]["content"][0]
    assert (used["input"], result["tool_use_id"]) == ({"a": 1}, used["id"])
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


@each(
    ("fields", "choice"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"parallel_tool_calls": True}, None),
        (
            {"parallel_tool_calls": False},
            {"type": "auto", "disable_parallel_tool_use": True},
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
            {"type": "tool", "name": "weather"},
        ),
    ],
)
def test_the_choice_of_tools(fields: dict[str, Any], choice: dict[str, Any] | None) -> None:
    assert sent_for(tools=[_function()], **fields).get("tool_choice") == choice


def test_tools_and_their_schemas() -> None:
    schema = {"type": "object", "properties": {"place": {"type": "string"}}}
    tools = [
        _function(description="d", parameters=schema, strict=True),
        _function("now", strict=False),
    ]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tools[1]]}}
    weather = {"name": "weather", "description": "d", "input_schema": schema, "strict": True}
    now = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
    assert sent_for(tools=tools)["tools"] == [weather, now]
    body = sent_for(tools=tools, tool_choice=allowed)
    assert (body["tools"], body["tool_choice"]) == ([now], {"type": "any"})


@each("schema", [{}, {"type": "object"}, {"description": "d"}, {"additionalProperties": False}])
def test_a_schema_without_properties_gets_an_empty_list_of_them(schema: dict[str, Any]) -> None:
    [tool] = sent_for(tools=[_function(parameters=schema)])["tools"]
    assert tool["input_schema"] == {"type": "object", "properties": {}, **schema}


def test_images_and_documents() -> None:
    note = base64.b64encode("Grüße".encode()).decode()
    content = [
        {"type": "text", "text": "See:"},
        {"type": "image_url", "image_url": {"url": _PNG, "detail": "high"}},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
        {"type": "file", "file": {"file_data": _PDF, "filename": "lease.pdf"}},
        {"type": "file", "file": {"file_data": f"data:text/plain;base64,{note}"}},
    ]
    (message,) = sent_for(messages=[{"role": "user", "content": content}])["messages"]
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    assert message["content"] == [
        _text("See:"),
        {"type": "image", "source": source},
        {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
        {"type": "document", "source": pdf, "title": "lease.pdf"},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "Grüße"},
        },
    ]


def test_marks_of_the_caller_are_passed_on() -> None:
    content = [
        {"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "image_url", "image_url": {"url": _PNG}, "cache_control": _MARK},
    ]
    tool = {**_function(), "cache_control": _MARK}
    for caching in PromptCaching.CALLER, PromptCaching.FIVE_MINUTES:
        body = sent_for(
            model=behaving(caching=caching),
            messages=[{"role": "user", "content": content}],
            tools=[tool],
        )
        text, image = body["messages"][0]["content"]
        assert text["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
        assert (image["cache_control"], body["tools"][0]["cache_control"]) == (_MARK, _MARK)
        assert "cache_control" not in body


@each(
    ("caching", "mark"),
    [
        (PromptCaching.OFF, None),
        (PromptCaching.CALLER, None),
        (PromptCaching.FIVE_MINUTES, {"type": "ephemeral"}),
        (PromptCaching.ONE_HOUR, {"type": "ephemeral", "ttl": "1h"}),
    ],
)
def test_automatic_caching(caching: PromptCaching, mark: dict[str, Any] | None) -> None:
    assert sent_for(model=behaving(caching=caching)).get("cache_control") == mark


@each(
    ("fields", "thinking", "effort"),
    [
        ({}, None, None),
        ({"include_reasoning": True}, None, None),
        ({"reasoning_effort": "none"}, {"type": "disabled"}, None),
        ({"thinking": False}, {"type": "disabled"}, None),
        ({"thinking": True}, {"type": "adaptive"}, None),
        ({"reasoning": {"enabled": True}}, {"type": "adaptive"}, None),
        ({"reasoning_effort": "minimal"}, {"type": "adaptive"}, "low"),
        ({"reasoning_effort": "max"}, {"type": "adaptive"}, "max"),
        (
            {"reasoning": {"max_tokens": 1500}},
            {"type": "enabled", "budget_tokens": 1500},
            None,
        ),
    ],
)
def test_how_reasoning_is_asked_for(
    fields: dict[str, Any], thinking: dict[str, Any] | None, effort: str | None
) -> None:
    body = sent_for(output_tokens_max=4000, **fields)
    assert body.get("thinking") == thinking
    assert body.get("output_config", {}).get("effort") == effort


@each(
    ("effort", "bound", "budget"),
    [("low", 20_000, 4000), ("medium", 4000, 2000), ("low", 2000, 1024), ("max", 2000, 1900)],
)
def test_reasoning_by_a_budget(effort: str, bound: int, budget: int) -> None:
    model = behaving(thinking=ThinkingStyle.BUDGET)
    body = sent_for(model=model, output_tokens_max=bound, reasoning_effort=effort)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert "output_config" not in body


def test_a_budget_must_fit_the_output() -> None:
    model = behaving(thinking=ThinkingStyle.BUDGET)
    with pytest.raises(InvalidRequest) as refused:
        sent_for(model=model, output_tokens_max=1024, reasoning_effort="low")
    assert refused.value.param == "reasoning_effort"
    with pytest.raises(InvalidRequest) as refused:
        sent_for(output_tokens_max=2000, reasoning={"max_tokens": 2000})
    assert refused.value.param == "reasoning.max_tokens"


def test_a_budget_is_not_sent_where_a_tool_loop_has_no_signature() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        _says("Hi"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]
    model = behaving(thinking=ThinkingStyle.BUDGET)
    fields: dict[str, Any] = {"reasoning_effort": "low", "output_tokens_max": 4000}
    assert "thinking" not in sent_for(model=model, messages=messages, **fields)
    assert "thinking" in sent_for(model=model, messages=[*messages, _says("Go on.")], **fields)


def test_sampling_identity_and_format() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    named = {"name": "n", "schema": schema, "description": "d", "strict": True}
    body = sent_for(
        temperature=0,
        top_p=0.5,
        stop="END",
        user="u",
        safety_identifier="s",
        response_format={"type": "json_schema", "json_schema": named},
        prompt_cache_key="a hint that this provider has no place for",
    )
    assert (body["temperature"], body["top_p"], body["stop_sequences"]) == (0, 0.5, ["END"])
    assert body["metadata"] == {"user_id": "s"}
    described = {**schema, "description": "d"}
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": described}}


def test_a_web_search() -> None:
    location = {"type": "approximate", "approximate": {"city": "Rome"}}
    options = {"user_location": location, "search_context_size": "medium"}
    (tool,) = sent_for(web_search_options=options)["tools"]
    assert tool == {
        "type": "web_search_20250305",
        "name": "web_search",
        "max_uses": 10,
        "user_location": {"type": "approximate", "city": "Rome"},
    }
