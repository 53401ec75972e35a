"""Sends Responses requests, scripts chat answers for the upstream, and decodes Responses streams."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.support.responses_published import check_event, check_response
from tests.support.scripted_gateway import MODEL, ScriptedGateway
from tests.support.upstream import (
    DONE,
    USAGE,
    Peer,
    Verb,
    answer,
    chunk,
    completion,
    sse,
    stream,
    usage_chunk,
)

BARE = "example/bare"

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


async def respond(scripted: ScriptedGateway, **fields: Any) -> httpx2.Response:
    """Sends a request. Checks the format of a JSON result; `read_events` checks that of a stream."""
    headers = fields.pop("headers", scripted.tenant.as_customer)
    body = {"model": MODEL, "input": "Hello", **fields}
    answered = await scripted.gateway.client.post("/v1/responses", json=body, headers=headers)
    if answered.status_code == 200 and not body.get("stream"):
        check_response(answered.json())
    return answered


async def sent(scripted: ScriptedGateway, **fields: Any) -> dict[str, Any]:
    """Makes a request that succeeds, and returns the body of the request that the backend received."""
    answer_ = await respond(scripted, **fields)
    assert answer_.status_code == 200, answer_.text
    return scripted.upstream.requests[-1].json


def both(message: dict[str, Any], finish: str = "stop", usage: Any = USAGE) -> Verb:
    """Answers with the same message in JSON or in a stream, in which the message is one chunk."""
    whole = completion(usage=usage)
    whole["choices"][0] |= {"message": {"role": "assistant", **message}, "finish_reason": finish}
    piece = {key: value for key, value in message.items() if value is not None}
    if "tool_calls" in piece:
        piece["tool_calls"] = [{"index": at, **call} for at, call in enumerate(piece["tool_calls"])]
    streamed = stream(records([piece], finish=finish, usage=usage))

    async def verb(peer: Any) -> None:
        await (streamed if peer.request.json.get("stream") else answer(whole))(peer)

    return verb


def records(
    deltas: Iterable[dict[str, Any]], *, finish: str = "stop", usage: Any = USAGE
) -> list[bytes]:
    return [
        *(sse(chunk(delta=delta)) for delta in deltas),
        sse(chunk(finish=finish)),
        sse(usage_chunk(usage)),
        DONE,
    ]


def calls(*called: tuple[str, str, str]) -> dict[str, Any]:
    """Returns a message that calls functions: `called` has the id, name and arguments of each call."""
    return {
        "content": None,
        "tool_calls": [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in called
        ],
    }


def look_then_tell() -> Verb:
    """Plays a backend that calls a function until it has received two outputs of it."""

    async def verb(peer: Peer) -> None:
        messages = peer.request.json["messages"]
        seen = [message["content"] for message in messages if message["role"] == "tool"]
        if len(seen) < 2:
            arguments = json.dumps({"place": f"room {len(seen)}"})
            message = calls((f"call_{len(seen)}", "look", arguments))
            await both(message, finish="tool_calls")(peer)
        else:
            await both({"content": f"I saw {' and '.join(seen)}."})(peer)

    return verb


def read_events(body: str) -> tuple[list[dict[str, Any]], bool]:
    """Returns the events of a stream, checked for their format, and whether `[DONE]` ended it."""
    found = body.split("\n\n")
    assert found[-1] == "", "the last record ends with a blank line"
    done = found[-2] == "data: [DONE]"
    events: list[dict[str, Any]] = []
    for record in found[: -2 if done else -1]:
        name, data = record.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        check_event(event)
        events.append(event)
    return events, done


def types(events: Iterable[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


@dataclass
class Told:
    """Contains an answer as a client assembles it from the deltas alone."""

    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    refusals: dict[tuple[int, int], str] = field(default_factory=dict)
    thoughts: dict[tuple[int, int], str] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    annotations: list[dict[str, Any]] = field(default_factory=list)


def retell(events: Iterable[dict[str, Any]]) -> Told:
    """Reads a stream as a strict client does, and checks all rules for the order of events."""
    told = Told()
    items: dict[int, dict[str, Any]] = {}
    open_items: set[int] = set()
    open_parts: set[tuple[int, int]] = set()
    response_ids = set()
    ended = False
    for event in events:
        assert not ended, "nothing follows the terminal event"
        kind = event["type"]
        if "response" in event:
            response_ids.add(event["response"]["id"])
            ended = kind in TERMINAL
            continue
        at = event["output_index"]
        if kind == "response.output_item.added":
            assert at == len(items), "items are numbered as they begin"
            assert event["item"]["status"] == "in_progress"
            items[at] = event["item"]
            open_items.add(at)
            if event["item"]["type"] == "function_call":
                told.arguments[at] = event["item"]["arguments"]
                told.names[at] = event["item"]["name"]
            continue
        if kind == "response.output_item.done":
            assert event["item"]["id"] == items[at]["id"]
            assert not [place for place in open_parts if place[0] == at]
            open_items.remove(at)
            continue
        assert at in open_items
        assert event["item_id"] == items[at]["id"]
        _retell_piece(event, told, open_parts)
    assert ended
    assert len(response_ids) == 1
    return told


def _retell_piece(event: dict[str, Any], told: Told, open_parts: set[tuple[int, int]]) -> None:
    at = event["output_index"]
    if event["type"] == "response.function_call_arguments.delta":
        told.arguments[at] += event["delta"]
        return
    if event["type"] == "response.function_call_arguments.done":
        assert event["arguments"] == told.arguments[at]
        return
    place = (at, event["content_index"])
    texts = {"output_text": told.texts, "refusal": told.refusals, "reasoning_text": told.thoughts}
    family = event["type"].split(".")[1]
    if event["type"] == "response.content_part.added":
        open_parts.add(place)
        part = event["part"]
        texts[part["type"]][place] = ""
        assert part.get("text", part.get("refusal")) == ""
        return
    assert place in open_parts
    if event["type"] == "response.content_part.done":
        part = event["part"]
        assert part.get("text", part.get("refusal")) == texts[part["type"]][place]
        open_parts.remove(place)
    elif event["type"].endswith(".delta"):
        texts[family][place] += event["delta"]
    elif event["type"].endswith(".annotation.added"):
        told.annotations.append(event["annotation"])
    else:
        whole = event["refusal"] if family == "refusal" else event["text"]
        assert whole == texts[family][place]
