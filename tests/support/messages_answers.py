"""Sends Messages requests over HTTP, and decodes their streams as a strict client does."""

import json
from typing import Any

import httpx2

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import MODEL, ScriptedGateway
from tests.support.token_counts import USER, Customer

PATH = "/v1/messages"
TOOL: dict[str, Any] = {
    "name": "look",
    "description": "Looks at a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}


async def send(at: Customer, **fields: Any) -> httpx2.Response:
    headers = fields.pop("headers", at.tenant.as_customer)
    path = fields.pop("path", PATH)
    body = {"model": MODEL, "max_tokens": 100, "messages": [USER], **fields}
    return await at.gateway.client.post(path, json=body, headers=headers)


async def answered(at: Customer, **fields: Any) -> dict[str, Any]:
    """Makes a call that succeeds, and returns its message, which may have been streamed."""
    found = await send(at, **fields)
    assert found.status_code == 200, found.text
    assert found.headers["request-id"] == found.headers["x-request-id"]
    if fields.get("stream"):
        return assembled(read_events(found.text))
    message: dict[str, Any] = found.json()
    return message


async def asked(scripted: ScriptedGateway, **fields: Any) -> dict[str, Any]:
    """Makes a call that succeeds, and returns the body of the request that the backend received."""
    await answered(scripted, **fields)
    return scripted.upstream.requests[-1].json


def read_events(body: str) -> list[dict[str, Any]]:
    """Returns the events of a stream, and checks the format of each."""
    records = body.split("\n\n")
    assert records.pop() == "", "the last record ends with a blank line"
    events = []
    for record in records:
        name, data = record.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the message that a strict client assembles, and checks the published order of events."""
    told = [event for event in events if event["type"] != "ping"]
    first, *content, delta, stop = told
    assert first["type"] == "message_start"
    assert (delta["type"], stop) == ("message_delta", {"type": "message_stop"})
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    arguments: dict[int, str] = {}
    open_blocks: set[int] = set()
    for event in content:
        index = event["index"]
        if event["type"] == "content_block_start":
            assert index == len(message["content"]), "blocks are numbered as they begin"
            message["content"].append(event["content_block"])
            open_blocks.add(index)
            continue
        assert index in open_blocks
        if event["type"] == "content_block_stop":
            open_blocks.remove(index)
            continue
        assert event["type"] == "content_block_delta"
        _extend(message["content"][index], event["delta"], arguments, index)
    assert not open_blocks
    for index, written in arguments.items():
        message["content"][index]["input"] = json.loads(written)
    return {**message, **delta["delta"], "usage": delta["usage"]}


def _extend(
    block: dict[str, Any], delta: dict[str, Any], arguments: dict[int, str], index: int
) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] += delta["signature"]
        case "citations_delta":
            block.setdefault("citations", []).append(delta["citation"])
        case kind:
            assert kind == "input_json_delta"
            arguments[index] = arguments.get(index, "") + delta["partial_json"]


def assert_refused(
    found: httpx2.Response, status: int, code: str, param: str | None = None
) -> None:
    """Checks the published error envelope, whose message begins with the param."""
    assert_error(found, status, code, param)
    body = found.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == found.headers["request-id"] == found.headers["x-request-id"]
    if param is not None:
        assert body["error"]["message"].startswith(f"{param}: ")
