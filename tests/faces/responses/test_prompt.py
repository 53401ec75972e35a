"""Tests how a Responses request becomes a prompt, and the prompt a request of the chat wire and of the
Responses wire, without HTTP."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.support.backend_calls import MODEL, make_call
from tests.support.tables import each
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import (
    CachingWish,
    File,
    FunctionTool,
    Image,
    Logprobs,
    NamedFunction,
    Prompt,
    Reasoning,
    Refusal,
    Role,
    SchemaOutput,
    Text,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolResult,
    Turn,
    WebSearch,
)
from tollkeeper.faces.responses.input import Conversation
from tollkeeper.faces.responses.prompt import read_prompt
from tollkeeper.faces.responses.tools import read_tools
from tollkeeper.faces.wire.responses import ResponsesRequest
from tollkeeper.providers.chat.wire import ChatWire
from tollkeeper.providers.responses.wire import ResponsesWire

THINKER = replace(MODEL, supported_features=("reasoning",))
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def prompt_of(**fields: Any) -> Prompt:
    body = {"model": "m", "input": "Hi", **fields}
    request = msgspec.json.decode(json.dumps(body), type=ResponsesRequest)
    conversation = Conversation(THINKER, lambda _: None)
    tools = read_tools(request.tools or ())
    return read_prompt(request, THINKER, conversation, tools, CachingWish())


def call_of(**fields: Any) -> Call:
    return msgspec.structs.replace(make_call(), prompt=prompt_of(**fields))


def test_instructions_and_text() -> None:
    assert prompt_of(instructions="Be brief.").turns == (
        Turn(Role.SYSTEM, (Text("Be brief."),), place="instructions"),
        Turn(Role.USER, (Text("Hi"),), place="input"),
    )


def test_an_answer_in_several_items_is_one_turn() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "t", "text": "Hm."}]}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "So."}]}
    output = {"type": "function_call_output", "call_id": "c", "output": "7"}
    turns = prompt_of(input=[thought, said, CALL, output]).turns
    assert turns == (
        Turn(
            Role.ASSISTANT,
            (Reasoning("Hm."), Text("So."), ToolCall("c", "f", "{}", "input[2]")),
            place="input[1]",
        ),
        Turn(Role.TOOL, (ToolResult((Text("7"),), "c"),), place="input[3]"),
    )


def test_two_answers_without_a_call_between_them_are_two_turns() -> None:
    said = {"role": "assistant", "content": "a"}
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert [turn.parts for turn in prompt_of(input=[said, refused]).turns] == [
        (Text("a"),),
        (Refusal("no"),),
    ]


def test_reasoning_goes_with_what_it_led_to() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "s", "text": "Hm."}]}
    said = {"role": "assistant", "content": "a"}
    asked = {"role": "user", "content": "b"}
    assert [
        turn.parts for turn in prompt_of(input=[said, thought, said, thought, asked]).turns
    ] == [
        (Text("a"),),
        (Reasoning("Hm."), Text("a")),
        (Text("b"),),
    ]


def test_media() -> None:
    content = [
        {"type": "input_image", "image_url": "u", "detail": "low"},
        {"type": "input_file", "file_data": "d", "filename": "f"},
    ]
    [turn] = prompt_of(input=[{"role": "user", "content": content}]).turns
    assert turn.parts == (
        Image("u", "low", "input[0].content[0]"),
        File("d", filename="f", place="input[0].content[1]"),
    )


def test_tools_and_choice() -> None:
    prompt = prompt_of(tools=[FUNCTION, {"type": "web_search"}], tool_choice=FUNCTION)
    assert prompt.tools == (
        FunctionTool(
            "f",
            parameters={"type": "object"},
            place="tools[0]",
            schema_place="tools[0].parameters",
        ),
    )
    assert prompt.web_search == WebSearch("tools[1]")
    assert prompt.tool_choice is not None
    assert prompt.tool_choice.choice == NamedFunction("f")


def test_a_search_that_is_chosen_is_all_that_is_offered() -> None:
    prompt = prompt_of(tools=[FUNCTION, {"type": "web_search"}], tool_choice={"type": "web_search"})
    assert prompt.tools == ()
    assert prompt.tool_choice == ToolChoice(ToolMode.REQUIRED, "tool_choice")
    assert prompt.web_search is not None


@each(
    ("kind", "error", "param"),
    [
        ("code_interpreter", OptionUnsupported, "tools[0]"),
        ("mcp", OptionUnsupported, "tools[0]"),
        ("telepathy", InvalidRequest, "tools[0].type"),
    ],
)
def test_tools_of_other_types(kind: str, error: type[Exception], param: str) -> None:
    with pytest.raises(error) as refused:
        prompt_of(tools=[{"type": kind}])
    assert getattr(refused.value, "param", None) == param


def test_log_probabilities_are_asked_for_by_include_alone() -> None:
    assert prompt_of(top_logprobs=5).logprobs is None
    include = ["message.output_text.logprobs"]
    assert prompt_of(top_logprobs=5, include=include).logprobs == Logprobs("include[0]", 5)


def test_format() -> None:
    wanted = {"type": "json_schema", "name": "n", "schema": {}, "strict": True}
    assert prompt_of(text={"format": wanted}).output_format == SchemaOutput(
        "n", {}, "text.format", "text.format.schema", strict=True
    )


def test_the_same_request_on_either_wire() -> None:
    """A chat backend gets messages, and a Responses backend gets items like those that the client sent."""
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "t", "text": "Hm."}]}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Look:"}]},
        thought,
        CALL,
        {"type": "function_call_output", "call_id": "c", "output": "7"},
        {"role": "developer", "content": "Be brief."},
    ]
    call = call_of(input=items, instructions="Be kind.", tools=[FUNCTION], temperature=0.5)
    chat = json.loads(ChatWire().encode_request(call, stream=False, extra={}))
    assert chat["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Look:"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "Hm.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "7"},
        {"role": "developer", "content": "Be brief."},
    ]
    responses = json.loads(ResponsesWire().encode_request(call, stream=False, extra={}))
    assert responses["instructions"] == "Be kind."
    assert responses["input"] == [
        {"type": "message", "role": "user", "content": "Look:"},
        {
            "type": "reasoning",
            "id": "rs_0",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        CALL,
        {"type": "function_call_output", "call_id": "c", "output": "7"},
        {"type": "message", "role": "developer", "content": "Be brief."},
    ]
    assert responses["tools"] == [{**FUNCTION, "strict": False}]
    assert chat["temperature"] == responses["temperature"] == 0.5


def test_where_a_backend_has_no_place_the_callers_own_place_is_named() -> None:
    audio = {"type": "input_image", "image_url": "u"}
    call = call_of(
        input=[{"role": "assistant", "content": "a"}, {"role": "user", "content": [audio]}]
    )
    named = msgspec.structs.replace(call.prompt.turns[1], name="Ann")
    prompt = call.prompt.with_turns((call.prompt.turns[0], named))
    with pytest.raises(OptionUnsupported) as refused:
        ResponsesWire().encode_request(
            msgspec.structs.replace(call, prompt=prompt), stream=False, extra={}
        )
    assert refused.value.param == "input[1].name"


_MANY = 10_000
_CALLS = [{**CALL, "call_id": f"c{number}"} for number in range(_MANY)]
_NAMESPACES = [
    {"type": "namespace", "name": f"n{number}", "tools": [FUNCTION]} for number in range(_MANY)
]


@pytest.mark.timeout(30)
def test_many_messages_behind_many_calls_take_time_in_proportion() -> None:
    """Tests that the time is linear. A search through all calls for each message takes minutes."""
    messages = [{"role": "assistant", "content": "a"}] * _MANY
    (turn,) = prompt_of(input=[*_CALLS, *messages]).turns
    assert len(turn.parts) == 2 * _MANY


@pytest.mark.timeout(30)
def test_many_allowed_namespaces_take_time_in_proportion() -> None:
    """Tests that the time is linear, also if the choice names each namespace many times."""
    named = [{"type": "namespace", "name": tool["name"]} for tool in _NAMESPACES]
    large = {**_NAMESPACES[0], "tools": [{**FUNCTION, "name": f"f{at}"} for at in range(_MANY)]}
    for tools, choice in ((_NAMESPACES, named), ([large], named[:1] * _MANY)):
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": choice}
        assert len(prompt_of(tools=tools, tool_choice=allowed).tools) == _MANY
