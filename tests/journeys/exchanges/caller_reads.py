"""Checks the answer that a client reads in a recorded exchange."""

import json
from typing import Any

import httpx2

from tests.journeys.exchanges.exchange import Exchange
from tests.support.responses_answers import respond
from tests.support.scripted_gateway import ScriptedGateway, read_stream

NOTHING: dict[str, Any] = {
    "text": "",
    "images": [],
    "reasoning": "",
    "refusal": "",
    "calls": [],
    "annotations": [],
    "finish": None,
}
# The reasons for the end of a Responses answer, and the same reasons in chat.
FINISHES = {"completed": "stop", "max_output_tokens": "length", "content_filter": "content_filter"}


async def ask(scripted: ScriptedGateway, exchange: Exchange, face: str) -> httpx2.Response:
    """Sends the exchange's request over this face. If the backend's protocol is the same as the face, the
    request passes nearly unchanged."""
    if face == "chat":
        return await scripted.chat(**exchange.asks[face])
    return await respond(scripted, **exchange.asks[face])


def check_answer(
    exchange: Exchange, used: tuple[int, int] | None, found: httpx2.Response, face: str
) -> None:
    """Checks the answer against the exchange, and its usage against `used` (prompt and completion tokens),
    which is None if nothing is charged."""
    expected = dict(exchange.caller_reads)
    error_status = expected.pop("error", None)
    assert found.status_code == (error_status or 200), found.text
    if error_status not in (None, 200):
        assert "error" in found.json()
        return
    if face == "chat":
        read, usage, ended = _read_chat(exchange, found)
    else:
        read, usage, ended = _read_responses(exchange, found)
        if exchange.protocol != "responses":
            # Responses has no separate reason for tool calls, and none for a broken answer.
            expected["finish"] = _finish_of_responses(expected.get("finish"), error_status)
    assert ended == (error_status is None), "a complete answer ends properly, a broken one does not"
    assert read == {**NOTHING, **expected}
    if error_status is None and used is not None:
        assert usage == used


def _read_chat(
    exchange: Exchange, found: httpx2.Response
) -> tuple[dict[str, Any], tuple[int, int] | None, bool]:
    """Returns the content of a chat answer, its usage, and whether it is complete."""
    if exchange.streamed:
        said = read_stream(found.text)
        ended = said.done and said.error is None
        pieces = [choice["delta"] for record in said.chunks for choice in record["choices"]]
        ends = [choice["finish_reason"] for record in said.chunks for choice in record["choices"]]
        usage = said.chunks[-1].get("usage")
    else:
        ended, answer = True, found.json()
        [choice] = answer["choices"]
        pieces, ends, usage = [choice["message"]], [choice["finish_reason"]], answer["usage"]
    calls: dict[int, list[str]] = {}
    for piece in pieces:
        for position, call in enumerate(piece.get("tool_calls") or ()):
            # A client may take an empty id for a new id.
            assert call.get("id") != ""
            custom = call.get("custom")
            assert call.get("type") in (None, "function" if custom is None else "custom")
            called = {**call["function"]} if custom is None else {**custom}
            told = calls.setdefault(
                call.get("index", position), ["", "", *([] if custom is None else ["custom"])]
            )
            told[0] += called.pop("name", "")
            told[1] += called.pop("arguments" if custom is None else "input", "")
            assert not called
    parts = [part for piece in pieces for part in _parts(piece.get("content"))]
    content = {
        "text": "".join(part.get("text", "") for part in parts),
        "images": [part["image_url"]["url"] for part in parts if part["type"] == "image_url"],
        "reasoning": "".join(piece.get("reasoning_content") or "" for piece in pieces),
        "refusal": "".join(piece.get("refusal") or "" for piece in pieces),
        "calls": list(calls.values()),
        "annotations": [
            _cited(note["url_citation"])
            for piece in pieces
            for note in piece.get("annotations") or ()
        ],
        "finish": next((end for end in ends if end is not None), None),
    }
    return content, usage and (usage["prompt_tokens"], usage["completion_tokens"]), ended


def _parts(content: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _read_responses(
    exchange: Exchange, found: httpx2.Response
) -> tuple[dict[str, Any], tuple[int, int] | None, bool]:
    """Does the same for a Responses answer, whose last event contains the whole result."""
    result = found.json() if not exchange.streamed else _read_events(found.text)
    ended = result["status"] in ("completed", "incomplete")
    content: dict[str, Any] = {**NOTHING, "images": [], "calls": [], "annotations": []}
    for item in result["output"]:
        if item["type"] == "message":
            content["text"] += "".join(part.get("text", "") for part in item["content"])
            content["refusal"] += "".join(part.get("refusal", "") for part in item["content"])
            notes = [note for part in item["content"] for note in part.get("annotations", ())]
            content["annotations"] += [_cited(note) for note in notes]
        elif item["type"] == "reasoning":
            parts = [*(item.get("content") or ()), *item["summary"]]
            content["reasoning"] += "".join(part["text"] for part in parts)
        elif item["type"] == "function_call":
            content["calls"].append([item["name"], item["arguments"]])
        elif item["type"] == "image_generation_call":
            image = f"data:image/{item['output_format']};base64,{item['result']}"
            content["images"].append(image)
    if ended:
        reason = (result["incomplete_details"] or {}).get("reason", result["status"])
        content["finish"] = FINISHES[reason]
    usage = result["usage"]
    return content, usage and (usage["input_tokens"], usage["output_tokens"]), ended


def _finish_of_responses(finish: str | None, error_status: int | None) -> str | None:
    if error_status is not None:
        return None
    return "stop" if finish == "tool_calls" else finish


def _cited(note: dict[str, Any]) -> list[Any]:
    return [note["url"], note["title"], note["start_index"], note["end_index"]]


def _read_events(body: str) -> dict[str, Any]:
    """Returns the result in the last event. Checks that the events before it contain the same pieces."""
    payloads = [line.removeprefix("data: ") for line in body.splitlines() if line[:6] == "data: "]
    events = [json.loads(payload) for payload in payloads if payload != "[DONE]"]
    result: dict[str, Any] = events[-1]["response"]
    pieces, notes = [""] * len(result["output"]), []
    for event in events:
        if event["type"].endswith(".delta"):
            pieces[event["output_index"]] += event["delta"]
        elif event["type"] == "response.output_text.annotation.added":
            notes.append(event["annotation"])
    assert pieces == [_whole(item) for item in result["output"]]
    parts = [part for item in result["output"] for part in item.get("content") or ()]
    assert notes == [note for part in parts for note in part.get("annotations", ())]
    return result


def _whole(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
    return "".join(part.get("text", "") + part.get("refusal", "") for part in parts)
