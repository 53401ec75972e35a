"""Contains the requests that scripted model servers receive, and creates their answers: chat and
Responses answers in JSON and as event streams."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
_FRAME = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1767225600,
    "model": "upstream-model",
}


@dataclass(frozen=True, slots=True)
class Received:
    """Contains one request as it arrived."""

    head: bytes
    body: bytes

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return {name.lower(): value.strip() for name, _, value in pairs}

    @property
    def json(self) -> dict[str, Any]:
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed


def chunk(
    text: str | None = None,
    *,
    index: int = 0,
    finish: str | None = None,
    delta: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Returns one record of a chat stream."""
    piece = delta if delta is not None else ({} if text is None else {"content": text})
    choice = {"index": index, "delta": piece, "logprobs": None, "finish_reason": finish}
    return {**_FRAME, "choices": [choice], "usage": None, **fields}


def usage_chunk(usage: Any = USAGE) -> dict[str, Any]:
    return {**_FRAME, "choices": [], "usage": usage}


def sse(record: Any) -> bytes:
    return b"data: " + json.dumps(record).encode() + b"\n\n"


def chat_records(pieces: Iterable[str] = ("Hel", "lo"), usage: Any = USAGE) -> list[bytes]:
    """Returns the records of a whole stream: role, pieces, end, usage, [DONE]."""
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
    """Returns a whole answer in JSON."""
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


# The Responses protocol: items, results, and named events.

RESPONSE_USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 10,
}


def typed(kind: str, **fields: Any) -> bytes:
    """Returns one event of a Responses stream."""
    return f"event: {kind}\n".encode() + sse({"type": kind, "sequence_number": 0, **fields})


def message_item(text: str = "Hello", **part: Any) -> dict[str, Any]:
    content = {"type": "output_text", "text": text, "annotations": [], "logprobs": [], **part}
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [content],
    }


def refusal_item(refusal: str) -> dict[str, Any]:
    return {**message_item(), "content": [{"type": "refusal", "refusal": refusal}]}


def call_item(
    call_id: str = "call_1", name: str = "look", arguments: str = '{"at": 1}'
) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "status": "completed",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def reasoning_item(text: str = "Hm.", *, summary: bool = False, **fields: Any) -> dict[str, Any]:
    part = {"type": "summary_text" if summary else "reasoning_text", "text": text}
    parts = {"summary": [part], "content": []} if summary else {"summary": [], "content": [part]}
    return {"type": "reasoning", "id": "rs_1", **parts, **fields}


def response(
    *output: dict[str, Any], status: str = "completed", usage: Any = RESPONSE_USAGE, **fields: Any
) -> dict[str, Any]:
    """Returns a whole result; without `output`, it has one message."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1767225600,
        "status": status,
        "model": "upstream-model",
        "output": list(output or (message_item(),)),
        "usage": usage,
        "error": None,
        "incomplete_details": None,
        **fields,
    }


def begun_response(**fields: Any) -> dict[str, Any]:
    return {**response(status="in_progress", usage=None), "output": [], **fields}


_GROWING = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
    "summary_text": ("response.reasoning_summary_text", "text"),
}


def item_records(at: int, item: dict[str, Any], *, pieces: int = 2) -> list[bytes]:
    """Returns the events of one item: its start, `pieces` deltas of each text, each whole text, its end."""
    place = {"item_id": item["id"], "output_index": at}
    empty = {"content": [], "summary": [], "arguments": "", "status": "in_progress"}
    begun = {name: empty.get(name, value) for name, value in item.items()}
    records = [typed("response.output_item.added", output_index=at, item=begun)]
    if item["type"] == "function_call":
        kind = "response.function_call_arguments"
        arguments = item["arguments"]
        records += [typed(f"{kind}.delta", delta=cut, **place) for cut in _cut(arguments, pieces)]
        records.append(typed(f"{kind}.done", arguments=arguments, name=item["name"], **place))
    for field in ("content", "summary"):
        for number, part in enumerate(item.get(field, ())):
            kind, name = _GROWING[part["type"]]
            index = "summary_index" if field == "summary" else "content_index"
            where = {**place, index: number}
            records += [
                typed(f"{kind}.delta", delta=cut, **where) for cut in _cut(part[name], pieces)
            ]
            records.append(typed(f"{kind}.done", **{name: part[name]}, **where))
            if field == "content":
                records.append(typed("response.content_part.done", part=part, **where))
    return [*records, typed("response.output_item.done", output_index=at, item=item)]


def response_records(
    *output: dict[str, Any], pieces: int = 2, status: str = "completed", **fields: Any
) -> list[bytes]:
    """Returns the records of a whole stream, without the `[DONE]` that some servers send at the end."""
    result = response(*output, status=status, **fields)
    stories = [item_records(at, item, pieces=pieces) for at, item in enumerate(result["output"])]
    return [
        typed("response.created", response=begun_response()),
        typed("response.in_progress", response=begun_response()),
        *(record for story in stories for record in story),
        typed(f"response.{status}", response=result),
    ]


def _cut(text: str, pieces: int) -> list[str]:
    if not pieces:
        return []
    size = max(1, -(-len(text) // pieces))
    return [text[start : start + size] for start in range(0, len(text), size)]
