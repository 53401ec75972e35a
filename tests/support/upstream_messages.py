"""Provides the verbs and records of a scripted model server that speaks Anthropic's Messages protocol.

`message` answers as a correct server: JSON, a stream, or a token count, as requested. The records of a
stream are created one by one, so that a test can omit, cut or add records.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tests.support.upstream import Peer, Verb, answer, stream

MESSAGES_USAGE = {"input_tokens": 12, "output_tokens": 5}
INPUT_TOKENS = 12


def record(kind: str, **fields: Any) -> bytes:
    """Returns one event of a stream, with its name."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def text_block(text: str = "Hello") -> dict[str, Any]:
    return {"type": "text", "text": text}


def thinking_block(thinking: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": thinking, "signature": signature}


def tool_block(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def whole_message(
    *content: dict[str, Any],
    stop_reason: str | None = "end_turn",
    usage: dict[str, Any] | None = MESSAGES_USAGE,
    **fields: Any,
) -> dict[str, Any]:
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": list(content or (text_block(),)),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        **({} if usage is None else {"usage": usage}),
        **fields,
    }


def begin(usage: dict[str, Any] | None = None) -> bytes:
    """Returns `message_start`. Like the provider's, its output token count is only a placeholder."""
    started = {**(usage or MESSAGES_USAGE), "output_tokens": 1}
    message = {**whole_message(stop_reason=None, usage=started), "content": []}
    return record("message_start", message=message)


def ping() -> bytes:
    return record("ping")


def block_records(index: int, block: dict[str, Any]) -> list[bytes]:
    """Returns the records of a block: an empty start, deltas (texts in two pieces), and the stop."""
    kind = block["type"]
    empty: dict[str, Any] = dict(block)
    deltas: list[dict[str, Any]] = []
    if kind == "text":
        empty["text"] = ""
        deltas = [{"type": "text_delta", "text": piece} for piece in halves(block["text"])]
    elif kind == "thinking":
        empty |= {"thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": piece} for piece in halves(block["thinking"])
        ]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif kind in ("tool_use", "server_tool_use"):
        empty["input"] = {}
        written = json.dumps(block["input"])
        deltas = [{"type": "input_json_delta", "partial_json": ""}]
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in halves(written)]
    return [
        record("content_block_start", index=index, content_block=empty),
        *(record("content_block_delta", index=index, delta=delta) for delta in deltas),
        record("content_block_stop", index=index),
    ]


def halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def end(
    stop_reason: str | None = "end_turn", usage: dict[str, Any] | None = MESSAGES_USAGE
) -> list[bytes]:
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    reported = {} if usage is None else {"usage": usage}
    return [record("message_delta", delta=delta, **reported), record("message_stop")]


def message_records(
    *content: dict[str, Any],
    stop_reason: str | None = "end_turn",
    usage: dict[str, Any] | None = MESSAGES_USAGE,
) -> list[bytes]:
    records = [begin(usage), ping()]
    for index, block in enumerate(content or (text_block(),)):
        records += block_records(index, block)
    return [*records, *end(stop_reason, usage)]


def message(*content: dict[str, Any], input_tokens: int = INPUT_TOKENS, **fields: Any) -> Verb:
    async def verb(peer: Peer) -> None:
        if peer.request.path.endswith(("/count_tokens", "/count-tokens:rawPredict")):
            await answer({"input_tokens": input_tokens})(peer)
        elif peer.request.json.get("stream"):
            await stream(message_records(*content, **fields))(peer)
        else:
            await answer(whole_message(*content, **fields))(peer)

    return verb


def error_body(kind: str, text: str = "no") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_01"}


def refuse_message(
    status: int, kind: str, text: str = "no", *, headers: Iterable[tuple[str, str]] = ()
) -> Verb:
    """Sends an error status with the provider's error object."""
    return answer(error_body(kind, text), status=status, headers=headers)


def error_record(kind: str, text: str = "no") -> bytes:
    """Returns the record of an error within a stream."""
    return record("error", error={"type": kind, "message": text})


def text_then(*records: bytes, pieces: Sequence[str] = ("0 ", "1 ")) -> list[bytes]:
    """Returns the records of a stream that contains some text before these records."""
    said = [
        record("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        for piece in pieces
    ]
    opened = record("content_block_start", index=0, content_block=text_block(""))
    return [begin(), opened, *said, *records]
