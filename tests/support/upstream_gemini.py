"""Provides the verbs and records of a scripted model server that speaks Google's Gemini protocol.

`generate` answers as a correct server: JSON, a stream, or a token count, depending on the path. The
records of a stream are created one by one, so that a test can omit, cut or add records.
"""

import json
from collections.abc import Sequence
from typing import Any

from tests.support.upstream import Peer, Verb, answer, stream

GEMINI_USAGE = {"promptTokenCount": 12, "candidatesTokenCount": 5, "totalTokenCount": 17}
INPUT_TOKENS = 12


def text_part(text: str = "Hello", signature: str | None = None) -> dict[str, Any]:
    return _signed({"text": text}, signature)


def thought_part(text: str, signature: str | None = None) -> dict[str, Any]:
    return _signed({"text": text, "thought": True}, signature)


def call_part(
    call_id: str | None, name: str, signature: str | None = None, **arguments: Any
) -> dict[str, Any]:
    called = {"name": name, "args": arguments}
    return _signed(
        {"functionCall": called if call_id is None else {"id": call_id, **called}}, signature
    )


def _signed(part: dict[str, Any], signature: str | None) -> dict[str, Any]:
    return part if signature is None else {**part, "thoughtSignature": signature}


def whole(
    *parts: dict[str, Any],
    finish: str | None = "STOP",
    usage: dict[str, Any] | None = GEMINI_USAGE,
    **candidate: Any,
) -> dict[str, Any]:
    """Returns a whole answer, or one piece of a stream."""
    described: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish is not None:
        described["finishReason"] = finish
    return {
        "candidates": [{**described, **candidate}],
        **({} if usage is None else {"usageMetadata": usage}),
        "modelVersion": "gemini-3-flash",
        "responseId": "r1",
    }


def blocked(reason: str = "SAFETY") -> dict[str, Any]:
    """Returns the answer for a blocked prompt, which has no candidate."""
    usage = {"promptTokenCount": 12, "totalTokenCount": 12}
    return {"promptFeedback": {"blockReason": reason}, "usageMetadata": usage}


def record(content: dict[str, Any]) -> bytes:
    """Returns one record of a stream. The provider ends its lines with CRLF."""
    return b"data: " + json.dumps(content).encode() + b"\r\n\r\n"


def piece(*parts: dict[str, Any], usage: dict[str, Any] | None = None) -> bytes:
    """Returns a piece that does not end the answer. By default, it reports only the prompt tokens."""
    told = {"promptTokenCount": 12, "totalTokenCount": 12} if usage is None else usage
    return record(whole(*parts, finish=None, usage=told))


def halves(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a text in two pieces, of which the second has the signature. Calls are not split."""
    text = part.get("text", "")
    middle = len(text) // 2
    if not middle:
        return [part]
    unsigned = {name: value for name, value in part.items() if name != "thoughtSignature"}
    return [{**unsigned, "text": text[:middle]}, {**part, "text": text[middle:]}]


def answer_records(
    *parts: dict[str, Any],
    finish: str | None = "STOP",
    usage: dict[str, Any] | None = GEMINI_USAGE,
    **candidate: Any,
) -> list[bytes]:
    pieces = [small for part in parts or (text_part(),) for small in halves(part)]
    told: dict[str, Any] | None = {} if usage is None else None
    return [
        *(piece(small, usage=told) for small in pieces),
        record(whole(text_part(""), finish=finish, usage=usage, **candidate)),
    ]


def generate(*parts: dict[str, Any], input_tokens: int = INPUT_TOKENS, **fields: Any) -> Verb:
    async def verb(peer: Peer) -> None:
        path = peer.request.path
        if path.endswith(":countTokens"):
            await answer({"totalTokens": input_tokens})(peer)
        elif path.endswith(":streamGenerateContent?alt=sse"):
            await stream(answer_records(*parts, **fields))(peer)
        else:
            await answer(whole(*(parts or (text_part(),)), **fields))(peer)

    return verb


def error_body(code: int, status: str, text: str = "no", *details: Any) -> dict[str, Any]:
    error = {"code": code, "message": text, "status": status}
    return {"error": {**error, **({"details": list(details)} if details else {})}}


def refuse_gemini(code: int, status: str, text: str = "no", *details: Any) -> Verb:
    """Sends an error status with the provider's error object."""
    return answer(error_body(code, status, text, *details), status=code)


def text_then(*records: bytes, pieces: Sequence[str] = ("0 ", "1 ")) -> list[bytes]:
    """Returns the records of a stream that contains some text before these records."""
    return [*(piece(text_part(text)) for text in pieces), *records]
