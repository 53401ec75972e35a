"""A scripted model server that speaks Cohere's chat protocol (v2): the verbs beside those of chat.

`cohere` answers as a good server does, JSON or a stream, as asked.
"""

import json
from typing import Any

from tests.support.upstream import Peer, Verb, answer, stream

COHERE_USAGE = {
    "billed_units": {"input_tokens": 9, "output_tokens": 5},
    "tokens": {"input_tokens": 12, "output_tokens": 5},
    "cached_tokens": 4,
}


def tool_call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    called = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": called}


def whole_answer(
    text: str = "Hello",
    *calls: dict[str, Any],
    usage: dict[str, Any] | None = COHERE_USAGE,
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    if calls:
        message |= {"tool_plan": text, "tool_calls": list(calls)}
    else:
        message["content"] = [{"type": "text", "text": text}]
    return {
        "id": "c1",
        "finish_reason": "TOOL_CALL" if calls else "COMPLETE",
        "message": message,
        **({} if usage is None else {"usage": usage}),
    }


def record(kind: str, **fields: Any) -> bytes:
    """One event of a stream, with its name."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def text_record(text: str) -> bytes:
    return record("content-delta", index=0, delta={"message": {"content": {"text": text}}})


def answer_records(
    text: str = "Hello",
    *calls: dict[str, Any],
    usage: dict[str, Any] | None = COHERE_USAGE,
) -> list[bytes]:
    begun = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    records = [record("message-start", id="c1", delta={"message": begun})]
    if not calls:
        opened = {"message": {"content": {"type": "text", "text": ""}}}
        middle = len(text) // 2
        records += [
            record("content-start", index=0, delta=opened),
            *(text_record(piece) for piece in (text[:middle], text[middle:])),
            record("content-end", index=0),
        ]
    for index, call in enumerate(calls):
        arguments = call["function"]["arguments"]
        empty = {**call, "function": {**call["function"], "arguments": ""}}
        piece = {"message": {"tool_calls": {"function": {"arguments": arguments}}}}
        records += [
            record("tool-call-start", index=index, delta={"message": {"tool_calls": empty}}),
            record("tool-call-delta", index=index, delta=piece),
            record("tool-call-end", index=index),
        ]
    ended: dict[str, Any] = {"finish_reason": "TOOL_CALL" if calls else "COMPLETE"}
    if usage is not None:
        ended["usage"] = usage
    return [*records, record("message-end", id="c1", delta=ended)]


def cohere(text: str = "Hello", *calls: dict[str, Any], **fields: Any) -> Verb:
    async def verb(peer: Peer) -> None:
        if peer.request.json.get("stream"):
            await stream(answer_records(text, *calls, **fields))(peer)
        else:
            await answer(whole_answer(text, *calls, **fields))(peer)

    return verb
