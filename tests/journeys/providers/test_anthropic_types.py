"""Tests that the types of Anthropic's SDK accept the requests of the wire and the answers of the
recordings and of the scripted server."""

from __future__ import annotations

import base64
import json
from typing import Any

import pydantic

from tests.journeys.exchanges.exchange import RECORDED, load
from tests.journeys.providers.typed_dicts import fits
from tests.providers.anthropic.calls import behaving, sent_for
from tests.support.sdks import anthropic
from tests.support.tables import each
from tests.support.upstream_messages import message_records, text_block, tool_block, whole_message
from tollkeeper.core.messages_behavior import PromptCaching, ThinkingStyle

_EXCHANGES = [
    name
    for name in sorted(path.stem for path in RECORDED.iterdir())
    if load(name).protocol == "messages"
    # The SDK has no type for the block that names another model.
    and name != "anthropic-fallback"
    and "synthetic" not in (RECORDED / f"{name}.json").read_text()
]
# Fields that older models accept, but that the SDK no longer lists.
_OLDER_FIELDS = frozenset({"temperature", "top_p"})
_PNG = "data:image/png;base64,iVBORw0KGgo="
_NOTE = base64.b64encode(b"A note.").decode()
_MARK = {"type": "ephemeral", "ttl": "1h"}
_FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "d",
        "strict": True,
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
    "cache_control": _MARK,
}
_CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": _MARK}]},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "See:"},
            {"type": "image_url", "image_url": {"url": _PNG}},
            {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}},
            {"type": "file", "file": {"file_data": f"data:text/plain;base64,{_NOTE}"}},
        ],
    },
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "toolu_1", "function": {"name": "weather", "arguments": '{"place": "Paris"}'}}
        ],
    },
    {
        "role": "tool",
        "tool_call_id": "toolu_1",
        "content": [{"type": "text", "text": "wet"}, {"type": "text", "text": "cold"}],
    },
    {"role": "developer", "content": "Be brief again."},
    {"role": "user", "content": "And?"},
]
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "object", "properties": {}}},
}


def _is_request(body: dict[str, Any]) -> bool:
    given = {name: value for name, value in body.items() if name not in _OLDER_FIELDS}
    return fits(given, anthropic.types.message_create_params.MessageCreateParams)


@each("name", _EXCHANGES)
def test_requests_of_the_recordings(name: str) -> None:
    assert _is_request({**load(name).request, "model": "claude-sonnet-5"})


@each(
    "fields",
    [
        {"tools": [_FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
        {
            "tools": [_FUNCTION],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        },
        {"tools": [_FUNCTION], "tool_choice": "none"},
        {"web_search_options": {"user_location": {"approximate": {"city": "Rome"}}}},
        {"response_format": _SCHEMA, "reasoning_effort": "xhigh"},
        {"temperature": 0.5, "top_p": 0.5, "stop": ["a"], "user": "u"},
        {"thinking": False},
        {"model": behaving(caching=PromptCaching.ONE_HOUR), "messages": _CONVERSATION[-1:]},
        {
            "model": behaving(thinking=ThinkingStyle.BUDGET),
            "reasoning_effort": "high",
            "output_tokens_max": 4000,
        },
    ],
)
def test_requests_of_the_wire(fields: dict[str, Any]) -> None:
    body = sent_for(**{"messages": _CONVERSATION, **fields})
    assert body["messages"]
    assert _is_request(body)


def test_a_request_that_is_wrong_is_noticed() -> None:
    """This shows that `_is_request` can fail."""
    body = sent_for(messages=_CONVERSATION, tools=[_FUNCTION])
    assert _is_request(body)
    assert not _is_request({**body, "n": 1})
    assert not _is_request({**body, "max_tokens": None})
    body["messages"][0]["content"][0]["type"] = "txt"
    assert not _is_request(body)


def _check_answer(body: dict[str, Any]) -> None:
    if body["type"] == "error":
        assert set(body["error"]) == {"type", "message"}
    else:
        pydantic.TypeAdapter(anthropic.types.Message).validate_python(body)


def _check_event(event: dict[str, Any]) -> None:
    if event["type"] == "error":
        assert set(event["error"]) == {"type", "message"}
    elif event["type"] != "ping":
        read = pydantic.TypeAdapter(anthropic.types.RawMessageStreamEvent).validate_python(event)
        assert read.type == event["type"]


@each("name", _EXCHANGES)
def test_answers_of_the_recordings(name: str) -> None:
    answer = load(name).answer
    for event in answer.get("lines", ()):
        if isinstance(event, dict):
            _check_event(event)
    if "body" in answer:
        _check_answer(answer["body"])


def test_answers_of_the_scripted_server() -> None:
    blocks = [text_block(), tool_block("toolu_1", "weather", place="Paris")]
    _check_answer(whole_message(*blocks, stop_reason="tool_use"))
    for record in message_records(*blocks, stop_reason="tool_use"):
        _check_event(json.loads(record.split(b"data: ", 1)[1]))
