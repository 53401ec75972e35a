"""Chat requests as arguments of the library, and its answers in the order of the protocol."""

from typing import Any

import pytest

from tollkeeper.embedded.bridge.chat_json import (
    ChunkOrder,
    UnsupportedField,
    library_arguments,
    whole_answer,
)

_MESSAGES = [{"role": "user", "content": "Hi"}]


def _arguments(fields: dict[str, Any], *, speaks_chat: bool = False) -> dict[str, Any]:
    body = {"model": "m", "messages": _MESSAGES, "max_tokens": 9, **fields}
    return library_arguments(body, speaks_chat=speaks_chat)


def test_what_the_library_has_a_place_for_is_carried() -> None:
    carried = {"temperature": 0.5, "stop": ["x"], "reasoning_effort": "low", "stream": True}
    assert _arguments(carried) == {"messages": _MESSAGES, "max_tokens": 9, **carried}


@pytest.mark.parametrize("name", ["user", "safety_identifier", "metadata", "prompt_cache_key"])
def test_hints_are_left_out(name: str) -> None:
    assert name not in _arguments({name: "x"})


@pytest.mark.parametrize(
    ("name", "value"), [("parallel_tool_calls", True), ("tool_choice", "auto"), ("n", 1)]
)
def test_what_holds_anyway_is_left_out(name: str, value: object) -> None:
    assert name not in _arguments({name: value})


@pytest.mark.parametrize(
    "name", ["functions", "web_search_options", "cache_salt", "thinking", "audio", "n"]
)
def test_everything_else_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedField) as refused:
        _arguments({name: 2})
    assert refused.value.field == name


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs", "logit_bias"])
def test_some_fields_exist_in_the_chat_protocol_only(name: str) -> None:
    assert _arguments({name: 1}, speaks_chat=True)[name] == 1
    with pytest.raises(UnsupportedField):
        _arguments({name: 1})


def test_marks_are_taken_out_of_messages_and_tools_and_nothing_else() -> None:
    mark = {"cache_control": {"type": "ephemeral"}, "extra_content": {"cache_control": {}}}
    part = {"type": "text", "text": "cache_control", **mark}
    schema = {"type": "object", "properties": {"cache_control": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, **mark}, **mark}
    found = _arguments({"messages": [{"role": "user", "content": [part], **mark}], "tools": [tool]})
    assert found["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "cache_control"}]}
    ]
    assert found["tools"] == [{"type": "function", "function": {"name": "f", "parameters": schema}}]


@pytest.mark.parametrize(
    ("usage", "kept"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, False),
        ({"prompt_tokens": 3, "completion_tokens": 0}, True),
        ({"prompt_tokens": 0, "completion_tokens": 3}, True),
    ],
)
def test_a_report_of_nothing_is_no_report(usage: dict[str, int], kept: bool) -> None:
    assert ("usage" in whole_answer({"choices": [], "usage": usage})) is kept
    assert ("usage" in ChunkOrder().chunk({"choices": [], "usage": usage})) is kept


def _chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "delta": delta}
    if finish is not None:
        choice["finish_reason"] = finish
    return {"id": "c", "choices": [choice]}


def test_a_choice_ends_once_and_last() -> None:
    order = ChunkOrder()
    for given in (_chunk("tool_calls"), _chunk(content="x"), _chunk("stop")):
        (choice,) = order.chunk(given)["choices"]
        assert "finish_reason" not in choice
    last = order.last_chunk()
    assert last is not None
    assert last["id"] == "c"
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]


def test_a_stream_without_an_end_gets_none() -> None:
    order = ChunkOrder()
    order.chunk(_chunk(content="x"))
    assert order.last_chunk() is None


def test_tool_calls_are_numbered_from_zero() -> None:
    """Anthropic's numbers are those of blocks, among which texts are counted too."""
    order = ChunkOrder()
    numbers = []
    for theirs in (1, 1, 3, 1):
        (choice,) = order.chunk(_chunk(tool_calls=[{"index": theirs}]))["choices"]
        numbers.append(choice["delta"]["tool_calls"][0]["index"])
    assert numbers == [0, 0, 1, 0]
