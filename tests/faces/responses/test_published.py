"""Tests results and streams as a conformance suite does: with the same kinds of requests and every event
that the gateway sends. Also tests that the checks of the published form notice each missing field."""

from typing import Any, get_args

import msgspec
import pytest

from tests.support.responses_answers import (
    both,
    calls,
    read_events,
    records,
    respond,
    retell,
    types,
)
from tests.support.responses_published import AnyEvent, check_event, check_response
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.tables import each
from tests.support.upstream import Verb, end_after, stream

PIXEL = "data:image/png;base64,iVBORw0KGgo="
PAGE = "data:application/pdf;base64,JVBERi0xLjE="
ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
}
CALL = both(calls(("c1", "add", '{"a": 1}')), finish="tool_calls")


def message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def with_part(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [message("user", [{"type": "input_text", "text": "What is this?"}, part])]


# For each case of the suite: the input, and the roles or part types that the backend must get.
INPUTS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "a message": ([message("user", "Hello")], ["user"]),
    "a system message": ([message("system", "Rhyme."), message("user", "Hi")], ["system", "user"]),
    "earlier turns": (
        [message("user", "I am Ann."), message("assistant", "Hello Ann."), message("user", "Who?")],
        ["user", "assistant", "user"],
    ),
    "an image": (with_part({"type": "input_image", "image_url": PIXEL}), ["text", "image_url"]),
    "a file": (
        with_part({"type": "input_file", "filename": "a.pdf", "file_data": PAGE}),
        ["text", "file"],
    ),
}


@each("streamed", [False, True])
@each("name", INPUTS)
async def test_input_of_every_kind_is_answered(
    scripted: ScriptedGateway, name: str, streamed: bool
) -> None:
    given, seen = INPUTS[name]
    found = await final(scripted, streamed=streamed, input=given)
    assert found["status"] == "completed"
    assert [item["type"] for item in found["output"]] == ["message"]
    messages = scripted.upstream.requests[-1].json["messages"]
    if isinstance(messages[0]["content"], list):
        assert [part["type"] for part in messages[0]["content"]] == seen
    else:
        assert [message["role"] for message in messages] == seen


@each("streamed", [False, True])
async def test_function_is_called(scripted: ScriptedGateway, streamed: bool) -> None:
    scripted.upstream.play(CALL)
    found = await final(scripted, streamed=streamed, tools=[ADD])
    [call] = found["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "add", '{"a": 1}')
    assert call["call_id"] == "c1"


async def final(scripted: ScriptedGateway, *, streamed: bool, **fields: Any) -> dict[str, Any]:
    answered = await respond(scripted, stream=streamed, **fields)
    assert answered.status_code == 200, answered.text
    if not streamed:
        found: dict[str, Any] = answered.json()
        return found
    events, done = read_events(answered.text)
    assert done
    retell(events)
    last: dict[str, Any] = events[-1]["response"]
    return last


CITED = {
    "content": "See there.",
    "annotations": [
        {
            "type": "url_citation",
            "url_citation": {
                "url": "https://example.com",
                "title": "There",
                "start_index": 4,
                "end_index": 9,
            },
        }
    ],
}
# Upstream answers that together cause every event that a stream can contain.
STORIES: dict[str, Verb] = {
    "thought and said": stream(records([{"reasoning": "Hm."}, CITED])),
    "called": CALL,
    "declined": stream(records([{"refusal": "No."}])),
    "cut short": stream(records([{"content": "Yes, b"}], finish="length")),
    "broken": end_after(1),
}


async def events_of(scripted: ScriptedGateway, story: str) -> list[dict[str, Any]]:
    scripted.upstream.play(STORIES[story])
    answered = await respond(scripted, stream=True, tools=[ADD])
    events, _ = read_events(answered.text)
    return events


async def test_every_published_event_is_sent(scripted: ScriptedGateway) -> None:
    sent = {kind for story in STORIES for kind in types(await events_of(scripted, story))}
    known = {kind.__struct_config__.tag for kind in get_args(AnyEvent)}
    assert {f"response.{kind}" for kind in sent} == known


@each("story", STORIES)
async def test_no_event_may_lack_a_field(scripted: ScriptedGateway, story: str) -> None:
    for event in await events_of(scripted, story):
        for field in msgspec.structs.fields(check_event(event)):
            assert field.required
            without = {name: value for name, value in event.items() if name != field.name}
            with pytest.raises(msgspec.ValidationError, match=field.name):
                check_event(without)


async def test_no_result_may_lack_a_field(scripted: ScriptedGateway) -> None:
    found = (await respond(scripted, tools=[ADD])).json()
    nullable = set()
    for field in msgspec.structs.fields(check_response(found)):
        without = {name: value for name, value in found.items() if name != field.name}
        with pytest.raises(msgspec.ValidationError, match=field.name):
            check_response(without)
        try:
            check_response({**found, field.name: None})
            nullable.add(field.name)
        except msgspec.ValidationError:
            assert found[field.name] is not None
    assert nullable == {
        *("completed_at", "error", "incomplete_details", "instructions", "max_output_tokens"),
        *("max_tool_calls", "previous_response_id", "prompt_cache_key", "reasoning"),
        *("safety_identifier", "usage"),
    }


async def test_what_a_request_may_leave_open_is_said_in_the_result(
    scripted: ScriptedGateway,
) -> None:
    shape = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    allowed = {"type": "allowed_tools", "tools": [{"type": "function", "name": "add"}]}
    answered = await respond(scripted, tools=[ADD], tool_choice=allowed, text={"format": shape})
    found = answered.json()
    assert found["text"]["format"]["strict"] is False
    assert found["tool_choice"] == {**allowed, "mode": "auto"}
    asked = scripted.upstream.requests[-1].json
    assert asked["tool_choice"] == "auto"
    assert "strict" not in asked["response_format"]["json_schema"]
