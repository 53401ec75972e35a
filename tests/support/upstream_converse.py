"""Provides the verbs and frames of a scripted model server that speaks Converse, or Anthropic's protocol
at Amazon Bedrock.

`converse` answers as the provider does: JSON, a stream of binary frames, or a token count, as requested.
The frames of a stream are created one by one, so that a test can omit, cut or add frames.
"""

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from tests.support.upstream import Peer, Verb, answer, stream
from tests.support.upstream_messages import halves, message_records, whole_message

FRAMES_TYPE = "application/vnd.amazon.eventstream"
CONVERSE_USAGE = {"inputTokens": 12, "outputTokens": 5, "totalTokens": 17}
INPUT_TOKENS = 12


def frame(payload: bytes, *headers: tuple[str, str]) -> bytes:
    """Returns one frame, whose headers are strings."""
    written = b"".join(
        bytes([len(name)])
        + name.encode()
        + b"\x07"
        + struct.pack(">H", len(value))
        + value.encode()
        for name, value in headers
    )
    prelude = struct.pack(">II", 16 + len(written) + len(payload), len(written))
    begun = prelude + struct.pack(">I", zlib.crc32(prelude)) + written + payload
    return begun + struct.pack(">I", zlib.crc32(begun))


def event(name: str, **fields: Any) -> bytes:
    return frame(
        json.dumps({**fields, "p": "abcdefgh"}).encode(),
        (":event-type", name),
        (":content-type", "application/json"),
        (":message-type", "event"),
    )


def exception(name: str, message: str = "no") -> bytes:
    return frame(
        json.dumps({"message": message}).encode(),
        (":exception-type", name),
        (":content-type", "application/json"),
        (":message-type", "exception"),
    )


def error_frame(code: str, message: str = "no") -> bytes:
    """Returns the frame of an error that the API does not define."""
    return frame(
        b"", (":message-type", "error"), (":error-code", code), (":error-message", message)
    )


def text_block(text: str = "Hello") -> dict[str, Any]:
    return {"text": text}


def reasoning_block(text: str, signature: str) -> dict[str, Any]:
    return {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}


def redacted_block(content: str) -> dict[str, Any]:
    return {"reasoningContent": {"redactedContent": content}}


def use_block(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}}


def whole_answer(
    *content: dict[str, Any],
    stop_reason: str | None = "end_turn",
    usage: dict[str, Any] | None = CONVERSE_USAGE,
    **fields: Any,
) -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": list(content or (text_block(),))}},
        "stopReason": stop_reason,
        "metrics": {"latencyMs": 100},
        **({} if usage is None else {"usage": usage}),
        **fields,
    }


def begin() -> bytes:
    return event("messageStart", role="assistant")


def delta(index: int, **fields: Any) -> bytes:
    return event("contentBlockDelta", contentBlockIndex=index, delta=fields)


def block_frames(index: int, block: dict[str, Any]) -> list[bytes]:
    """Returns the frames of a block. Only tool calls have a start; texts and arguments have two pieces."""
    frames: list[bytes] = []
    if "text" in block:
        frames = [delta(index, text=piece) for piece in halves(block["text"])]
    elif "toolUse" in block:
        use = block["toolUse"]
        begun = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
        frames = [event("contentBlockStart", contentBlockIndex=index, start=begun)]
        written = json.dumps(use["input"]) if use["input"] else ""
        frames += [delta(index, toolUse={"input": piece}) for piece in halves(written)]
    else:
        reasoning = block["reasoningContent"]
        pieces: list[dict[str, str]]
        if "redactedContent" in reasoning:
            pieces = [{"redactedContent": reasoning["redactedContent"]}]
        else:
            told = reasoning["reasoningText"]
            pieces = [{"text": piece} for piece in halves(told["text"])]
            pieces.append({"signature": told["signature"]})
        frames = [delta(index, reasoningContent=piece) for piece in pieces]
    return [*frames, event("contentBlockStop", contentBlockIndex=index)]


def end(
    stop_reason: str | None = "end_turn",
    usage: dict[str, Any] | None = CONVERSE_USAGE,
    **metadata: Any,
) -> list[bytes]:
    frames = [event("messageStop", stopReason=stop_reason)]
    if usage is not None:
        metrics = {"latencyMs": 100}
        frames.append(event("metadata", usage=usage, metrics=metrics, **metadata))
    return frames


def answer_frames(
    *content: dict[str, Any],
    stop_reason: str | None = "end_turn",
    usage: dict[str, Any] | None = CONVERSE_USAGE,
    **metadata: Any,
) -> list[bytes]:
    frames = [begin()]
    for index, block in enumerate(content or (text_block(),)):
        frames += block_frames(index, block)
    return [*frames, *end(stop_reason, usage, **metadata)]


def stream_frames(frames: Iterable[bytes]) -> Verb:
    return stream(frames, content_type=FRAMES_TYPE)


def converse(*content: dict[str, Any], input_tokens: int = INPUT_TOKENS, **fields: Any) -> Verb:
    async def verb(peer: Peer) -> None:
        if peer.request.path.endswith("/count-tokens"):
            await answer({"inputTokens": input_tokens})(peer)
        elif peer.request.path.endswith("/converse-stream"):
            await stream_frames(answer_frames(*content, **fields))(peer)
        else:
            await answer(whole_answer(*content, **fields))(peer)

    return verb


def refuse_aws(status: int, kind: str, text: str = "no") -> Verb:
    """Sends an error status as AWS does, with the kind of error in a header."""
    headers = [("x-amzn-errortype", f"{kind}:http://internal.amazon.com/coral/")]
    return answer({"message": text}, status=status, headers=headers)


def text_then(*frames: bytes, pieces: Sequence[str] = ("0 ", "1 ")) -> list[bytes]:
    """Returns the frames of a stream that contains some text before these frames."""
    return [begin(), *(delta(0, text=piece) for piece in pieces), *frames]


# Anthropic's protocol at Amazon Bedrock.


def chunk_frame(record: bytes) -> bytes:
    """Returns an event of the Messages protocol, wrapped in a frame."""
    data = record.partition(b"data: ")[2].strip()
    return event("chunk", bytes=base64.b64encode(data).decode())


def chunk_frames(records: Iterable[bytes]) -> list[bytes]:
    return [chunk_frame(record) for record in records]


def invoke(*content: dict[str, Any], input_tokens: int = INPUT_TOKENS, **fields: Any) -> Verb:
    async def verb(peer: Peer) -> None:
        if peer.request.path.endswith("/count-tokens"):
            await answer({"inputTokens": input_tokens})(peer)
        elif peer.request.path.endswith("/invoke-with-response-stream"):
            await stream_frames(chunk_frames(message_records(*content, **fields)))(peer)
        else:
            await answer(whole_message(*content, **fields))(peer)

    return verb
