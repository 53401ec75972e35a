"""Tests the conversion of chat requests to prompts and back, without HTTP and without a database."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import make_call, make_prompt
from tests.support.tables import each
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.prompt import (
    AllowedFunctions,
    Audio,
    File,
    FunctionTool,
    Image,
    JsonOutput,
    NamedFunction,
    Option,
    OtherChoice,
    OtherTool,
    Reasoning,
    ReasoningWish,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolMode,
    ToolResult,
    Turn,
    UserLocation,
    Video,
    WebSearch,
)
from tollkeeper.providers.chat.wire import ChatWire


def turns_of(*messages: dict[str, Any]) -> tuple[Turn, ...]:
    return make_prompt(messages=list(messages)).turns


def part_of(part: dict[str, Any]) -> Any:
    [turn] = turns_of({"role": "user", "content": [part]})
    [found] = turn.parts
    return found


def test_plain_messages() -> None:
    assert turns_of(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi", "name": "Ann"},
        {"role": "assistant", "content": None},
    ) == (
        Turn(Role.SYSTEM, (Text("Be brief."),), place="messages[0]"),
        Turn(Role.USER, (Text("Hi"),), "Ann", "messages[1]"),
        Turn(Role.ASSISTANT, (), place="messages[2]"),
    )


PLACE = "messages[0].content[0]"


@each(
    ("part", "expected"),
    [
        ({"type": "text", "text": "a"}, Text("a", place=PLACE)),
        ({"type": "text", "text": None}, Text("", place=PLACE)),
        ({"type": "text", "text": "a", "x": 1, "y": None}, Text("a", {"x": 1, "y": None}, PLACE)),
        ({"text": "a"}, Text("a", place=PLACE)),
        ({"type": None, "text": "a", "x": 1}, Text("a", {"x": 1}, PLACE)),
        ({"image_url": {"url": "u", "detail": "low"}}, Image("u", "low", PLACE)),
        ({"type": "refusal", "refusal": "no"}, Refusal("no", place=PLACE)),
        ({"type": "thinking", "thinking": "hm"}, Reasoning("hm", place=PLACE)),
        (
            {"type": "thinking", "thinking": [{"type": "text", "text": "a"}, {"text": "b"}]},
            Reasoning("ab", place=PLACE),
        ),
        ({"type": "image_url", "image_url": "u"}, Image("u", place=PLACE)),
        (
            {"type": "image_url", "image_url": {"url": "u", "detail": "low", "x": 1}},
            Image("u", "low", PLACE, {"x": 1}),
        ),
        (
            {"type": "input_image", "image_url": "u", "detail": "high"},
            Image("u", "high", PLACE),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            Audio("AA", "wav", place=PLACE),
        ),
        ({"type": "audio_url", "audio_url": {"url": "u"}}, Audio(url="u", place=PLACE)),
        ({"type": "video_url", "video_url": "u"}, Video("u", PLACE)),
        (
            {"type": "file", "file": {"file_data": "d", "filename": "f"}},
            File("d", filename="f", place=PLACE),
        ),
        ({"type": "file", "file": {"file_id": "i"}}, File(id="i", place=PLACE)),
    ],
)
def test_parts(part: dict[str, Any], expected: Any) -> None:
    assert part_of(part) == expected


@each(
    ("part", "place"),
    [
        ({"x": "a"}, "type"),
        ({"text": "a", "image_url": "u"}, "type"),
        ({"type": "odd"}, "type"),
        ({"type": "image_url"}, "image_url"),
        ({"type": "text", "text": "a", "video_url": "u"}, "video_url"),
    ],
)
def test_parts_that_nobody_understands(part: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        part_of(part)
    assert refused.value.param == f"{PLACE}.{place}"


def test_an_answer_with_everything() -> None:
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    [turn] = turns_of(
        {
            "role": "assistant",
            "content": "So.",
            "reasoning": "Hm.",
            "reasoning_content": "Hm.",
            "tool_calls": [called],
            "function_call": {"name": "g", "arguments": "1"},
        }
    )
    assert turn.parts == (
        Reasoning("Hm."),
        Text("So."),
        ToolCall("c", "f", "{}", "messages[0].tool_calls[0]"),
        ToolCall(None, "g", "1", "messages[0].function_call", legacy=True),
    )


def test_reasoning_under_two_names_that_differs_is_kept_twice() -> None:
    [turn] = turns_of({"role": "assistant", "reasoning": "a", "reasoning_content": "b"})
    assert turn.parts == (Reasoning("a"), Reasoning("b"))


def test_results_of_tools() -> None:
    assert turns_of(
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "7"}]},
        {"role": "function", "name": "f", "content": "8"},
        {"role": "user", "tool_call_id": "stray", "content": "x"},
    ) == (
        Turn(Role.TOOL, (ToolResult((Text("7", place=PLACE),), "c"),), place="messages[0]"),
        Turn(Role.FUNCTION, (ToolResult((Text("8"),), None, "f"),), place="messages[1]"),
        Turn(Role.USER, (Text("x"),), place="messages[2]", extra={"tool_call_id": "stray"}),
    )


@each(
    ("call", "expected"),
    [
        ({}, ToolCall(None, "", "")),
        ({"id": 7, "x": 1}, ToolCall(None, "", "", extra={"x": 1, "id": 7})),
        (
            {"id": "c", "function": {"name": "f", "arguments": {"a": 1}}},
            ToolCall("c", "f", "", extra={"function": {"arguments": {"a": 1}}}),
        ),
        (
            {"id": "c", "type": "custom", "custom": {"name": "f"}},
            ToolCall("c", "", "", extra={"type": "custom", "custom": {"name": "f"}}),
        ),
    ],
)
def test_calls_of_a_free_form_lose_nothing(call: dict[str, Any], expected: ToolCall) -> None:
    [turn] = turns_of({"role": "assistant", "tool_calls": [call]})
    [found] = turn.parts
    assert isinstance(found, ToolCall)
    assert (found.id, found.name, found.arguments, found.extra) == (
        expected.id,
        expected.name,
        expected.arguments,
        expected.extra,
    )


def test_tools() -> None:
    schema = {"type": "object"}
    prompt = make_prompt(
        tools=[
            {"type": "function", "function": {"name": "f", "parameters": schema, "x": 1}},
            {"type": "custom", "custom": {}},
            {"function": {"name": "g"}, "cache_control": {}},
        ],
        functions=[{"name": "h"}, {}],
    )
    f, custom, g, h, empty = prompt.tools
    assert f == FunctionTool(
        "f",
        parameters=schema,
        place="tools[0]",
        schema_place="tools[0].function.parameters",
        extra={"x": 1},
    )
    assert custom == OtherTool({"type": "custom", "custom": {}}, "tools[1]")
    assert isinstance(g, FunctionTool)
    assert g.tool_extra == {"cache_control": {}}
    assert (h.legacy, empty) == (True, OtherTool({}, "functions[1]", legacy=True))
    assert not prompt.has_legacy_functions_only
    assert make_prompt(functions=[{"name": "h"}]).has_legacy_functions_only


@each(
    ("choice", "expected"),
    [
        ("none", ToolMode.NONE),
        ("required", ToolMode.REQUIRED),
        ({"type": "function", "function": {"name": "f"}}, NamedFunction("f")),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
            AllowedFunctions(("f",), ToolMode.AUTO),
        ),
        ({}, OtherChoice({})),
        ({"type": "custom", "name": "f"}, OtherChoice({"type": "custom", "name": "f"})),
        ({"type": "function", "function": 7}, OtherChoice({"type": "function", "function": 7})),
    ],
)
def test_choices(choice: Any, expected: Any) -> None:
    found = make_prompt(tools=[{}], tool_choice=choice).tool_choice
    assert found is not None
    assert (found.choice, found.param) == (expected, "tool_choice")


def test_wishes() -> None:
    prompt = make_prompt(
        web_search_options={
            "search_context_size": "low",
            "user_location": {"type": "approximate", "approximate": {"city": "Kraków"}},
            "odd": 1,
        },
        response_format={"type": "json_object"},
        reasoning={"effort": "low", "enabled": True},
        verbosity="high",
        service_tier="auto",
    )
    assert prompt.web_search == WebSearch(
        "web_search_options", "low", UserLocation("Kraków"), {"odd": 1}
    )
    assert prompt.output_format == JsonOutput("response_format")
    assert prompt.reasoning == ReasoningWish(("reasoning",), "low")
    assert prompt.options == (
        Option("reasoning.enabled", True, "reasoning.enabled"),
        Option("verbosity", "high", "verbosity"),
    )


def encoded(**fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(
        ChatWire().encode_request(make_call(**fields), stream=False, extra={})
    )
    return body


def test_a_chat_backend_gets_the_bytes_that_the_caller_wrote() -> None:
    """Tests that numbers and free-form objects are not changed by their conversion to typed objects."""
    fields: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "x": [1.0, 2**70]}]}
        ],
        "tools": [{"type": "custom", "custom": {"n": 1e3}}],
        "tool_choice": {"type": "custom"},
        "temperature": 1,
        "seed": 2**63 - 1,
        "metadata": {"a": None},
        "web_search_options": {"odd": {}},
    }
    body = encoded(**fields)
    assert {name: body[name] for name in fields} == fields


def test_values_that_ask_for_nothing_do_not_travel() -> None:
    plain = encoded()
    nothing = ("temperature", "tools", "response_format", "modalities", "stop", "user", "metadata")
    assert encoded(**dict.fromkeys(nothing)) == plain
    assert encoded(response_format={"type": "text"}, modalities=["text"]) == plain
    assert encoded(tool_choice="auto", parallel_tool_calls=True, tools=[]) == plain


def test_the_gateways_own_name_of_a_model_does_not_travel() -> None:
    body = encoded(messages=[{"role": "user", "content": "Hi", "model_id": "m"}])
    assert body["messages"] == [{"role": "user", "content": "Hi"}]


TEXTS = st.text(max_size=20)


@given(
    st.lists(
        st.one_of(
            st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": TEXTS}),
            st.fixed_dictionaries(
                {"role": st.just("assistant"), "content": TEXTS, "reasoning": TEXTS}
            ),
            st.fixed_dictionaries(
                {"role": st.just("tool"), "content": TEXTS, "tool_call_id": TEXTS}
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_word_of_a_conversation_is_in_its_turns(messages: list[dict[str, Any]]) -> None:
    turns = turns_of(*messages)
    assert [turn.role.value for turn in turns] == [message["role"] for message in messages]
    for turn, message in zip(turns, messages, strict=True):
        words = json.dumps(
            [
                getattr(inner, "text", "")
                for part in turn.parts
                for inner in (part.content if isinstance(part, ToolResult) else (part,))
            ]
        )
        for text in (message["content"], message.get("reasoning", "")):
            assert json.dumps(text)[1:-1] in words
