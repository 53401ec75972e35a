"""What model servers put on the wire: chat answers in JSON and as event streams, piece by piece."""

import json
from collections.abc import Iterable
from typing import Any

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
_FRAME = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1767225600,
    "model": "upstream-model",
}


def chunk(
    text: str | None = None,
    *,
    index: int = 0,
    finish: str | None = None,
    delta: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """One record of a chat stream."""
    piece = delta if delta is not None else ({} if text is None else {"content": text})
    choice = {"index": index, "delta": piece, "logprobs": None, "finish_reason": finish}
    return {**_FRAME, "choices": [choice], "usage": None, **fields}


def usage_chunk(usage: Any = USAGE) -> dict[str, Any]:
    return {**_FRAME, "choices": [], "usage": usage}


def sse(record: Any) -> bytes:
    return b"data: " + json.dumps(record).encode() + b"\n\n"


def chat_records(pieces: Iterable[str] = ("Hel", "lo"), usage: Any = USAGE) -> list[bytes]:
    """A whole stream, record by record: role, pieces, end, usage, [DONE]."""
    return [
        sse(chunk(delta={"role": "assistant", "content": ""})),
        *(sse(chunk(piece)) for piece in pieces),
        sse(chunk(finish="stop")),
        *([] if usage is None else [sse(usage_chunk(usage))]),
        DONE,
    ]


def completion(
    text: str = "Hello", *, choices: int = 1, usage: Any = USAGE, **fields: Any
) -> dict[str, Any]:
    """A whole answer in JSON."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1767225600,
        "model": "upstream-model",
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": text},
                "logprobs": None,
                "finish_reason": "stop",
            }
            for index in range(choices)
        ],
        "usage": usage,
        **fields,
    }
