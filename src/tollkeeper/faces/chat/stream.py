"""Writes an answer as chat completion chunks while its events arrive."""

from typing import Any

import msgspec

from tollkeeper.calls.plans import Plan
from tollkeeper.core.inference import Batch, Call, Delta, FunctionCallPiece, Opened, ToolCallPiece
from tollkeeper.core.port import TextWriter
from tollkeeper.core.provider_words import known_fingerprint, known_finish, known_service_tier
from tollkeeper.faces.chat.completion import (
    annotation_view,
    called_tool_view,
    completion_id,
    content_parts,
    usage_view,
)
from tollkeeper.faces.chat.prompt import hides_reasoning
from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import chat as wire
from tollkeeper.http.envelope import error_body
from tollkeeper.http.sse import DONE, EventStream
from tollkeeper.http.wire_errors import ErrorEnvelope

_encode = msgspec.json.Encoder().encode
_NO_LOGPROBS_NO_FINISH = b'"logprobs":null,"finish_reason":null'


class ChatStream:
    """Runs the call, and is its sink."""

    def __init__(
        self,
        services: ApiServices,
        request: Request[wire.ChatRequest, None],
        call: Call,
        plan: Plan,
        created: int,
    ) -> None:
        self._services = services
        self._request = request
        self._call, self._plan = call, plan
        self._hides_reasoning = hides_reasoning(request.body)
        options = request.body.stream_options
        self._includes_usage = options is not None and options.include_usage is True
        self._stream: EventStream | None = None
        self._begun_choices: set[int] = set()
        # Encoded once. If the client asked for the usage, it's null in all chunks but the last.
        common_fields = {
            "id": completion_id(call.request_id),
            "object": "chat.completion.chunk",
            "created": created,
            "model": call.model.id,
        }
        self._chunk_start = b"data: " + _encode(common_fields)[:-1]
        self._chunk_end = b',"usage":null}\n\n' if self._includes_usage else b"}\n\n"

    async def run(self, stream: EventStream) -> None:
        self._stream = stream
        infer = self._services.inference.infer
        tab = await infer(self._call, self._plan, self, self._request)
        last = DONE
        if self._includes_usage:
            usage = _encode(usage_view(tab.usage))
            last = self._chunk_start + b',"choices":[],"usage":' + usage + b"}\n\n" + DONE
        await stream.end(last)

    def failure(self, error: Exception) -> bytes:
        """No `[DONE]` follows."""
        body = error_body(error, self._request.id)
        return b"data: " + _encode(ErrorEnvelope(error=body)) + b"\n\n"

    async def take(self, batch: Batch) -> None:
        assert self._stream is not None
        records = []
        for event in batch:
            if isinstance(event, Delta):
                records.append(self._record(event))
            elif isinstance(event, Opened):
                self._add_to_chunk_start(event)
        joined = b"".join(records)
        if joined:
            await self._stream.write(joined)

    def held_back(self) -> None:
        """Until the policy check releases the answer, the client only gets keep-alives."""
        assert self._stream is not None
        self._stream.mark_held_back()

    def text_writer(self) -> TextWriter | None:
        """For choice 0. None before its first chunk, which has the role."""
        assert self._stream is not None
        if 0 not in self._begun_choices:
            return None
        before = self._chunk_start + b',"choices":[{"index":0,"delta":{"content":'
        after = b"},%b}]%b" % (_NO_LOGPROBS_NO_FINISH, self._chunk_end)
        return self._stream.piece_writer(before, after)

    def _add_to_chunk_start(self, opened: Opened) -> None:
        fields = {
            "system_fingerprint": known_fingerprint(opened.system_fingerprint),
            "service_tier": known_service_tier(opened.service_tier),
        }
        present = {name: value for name, value in fields.items() if value is not None}
        if present:
            self._chunk_start += b"," + _encode(present)[1:-1]

    def _record(self, delta: Delta) -> bytes:
        """A choice's first chunk has the role, the next the content. The finish reason gets its own
        chunk, even if the backend sent it with content."""
        if delta.choice in self._begun_choices and delta == Delta(delta.choice, delta.text):
            return self._text_chunk(delta.choice, delta.text) if delta.text else b""
        chunks = []
        if delta.choice not in self._begun_choices:
            self._begun_choices.add(delta.choice)
            chunks.append(self._chunk(delta.choice, {"role": "assistant", "content": ""}))
        fields = self._fields(delta)
        if fields or delta.logprobs is not None:
            chunks.append(self._chunk(delta.choice, fields, logprobs=delta.logprobs))
        if delta.finish is not None:
            chunks.append(self._chunk(delta.choice, {}, finish=known_finish(delta.finish)))
        return b"".join(chunks)

    def _fields(self, delta: Delta) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if delta.text:
            fields["content"] = delta.text
        if delta.images:
            fields["content"] = content_parts(delta.text or "", delta.images)
        if delta.reasoning and not self._hides_reasoning:
            fields["reasoning"] = fields["reasoning_content"] = delta.reasoning
        if delta.refusal:
            fields["refusal"] = delta.refusal
        if delta.tool_calls:
            fields["tool_calls"] = [_tool_call(piece) for piece in delta.tool_calls]
        if delta.function_call is not None:
            fields["function_call"] = _function_call(delta.function_call)
        if delta.annotations:
            fields["annotations"] = [annotation_view(item) for item in delta.annotations]
        return fields

    def _text_chunk(self, index: int, text: str) -> bytes:
        """The same bytes as `_chunk` for a delta with only text, but faster."""
        return b'%b,"choices":[{"index":%d,"delta":{"content":%b},%b}]%b' % (
            self._chunk_start,
            index,
            _encode(text),
            _NO_LOGPROBS_NO_FINISH,
            self._chunk_end,
        )

    def _chunk(
        self,
        index: int,
        fields: dict[str, Any],
        *,
        logprobs: msgspec.Raw | None = None,
        finish: str | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": fields, "logprobs": logprobs, "finish_reason": finish}
        # Log-probabilities stay as they came, but a line end would end the record's data.
        content = _encode(choice).replace(b"\n", b" ")
        return self._chunk_start + b',"choices":[' + content + b"]" + self._chunk_end


def _tool_call(piece: ToolCallPiece) -> dict[str, Any]:
    """Only a call's first piece has `id`, `type` and `name`."""
    kind, tool_fields = called_tool_view(piece, custom=piece.custom)
    if piece.id is None and piece.name is None:
        return {"index": piece.index, kind: tool_fields}
    return {"index": piece.index, "id": piece.id, "type": kind, kind: {"name": "", **tool_fields}}


def _function_call(piece: FunctionCallPiece) -> dict[str, Any]:
    if piece.name is None:
        return {"arguments": piece.arguments}
    return {"name": piece.name, "arguments": piece.arguments}
