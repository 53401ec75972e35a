"""Converts a Messages answer, streamed or not, to events. Does no I/O. A stream is malformed
without a stop reason, if a block continues before its beginning or after its end, if a tool call
has no id, or if it's too long. Pings and unknown events are ignored."""

import base64
import binascii
from dataclasses import dataclass, field
from functools import partial

import msgspec

from tollkeeper.core.inference import Annotation, Call, Delta, Finish, UsageReport
from tollkeeper.core.prompt import FreeObject, SearchBlock
from tollkeeper.providers.answer_json import (
    MalformedAnswer,
    decode,
    decode_any,
    decode_usage_only,
    error_record,
    value_or_none,
    with_status,
)
from tollkeeper.providers.anthropic import records
from tollkeeper.providers.anthropic.records import Block, BlockDelta, Citation
from tollkeeper.providers.anthropic.usage import UsageReader
from tollkeeper.providers.bedrock import failure_of, is_exception, read_record
from tollkeeper.providers.claude_thinking import FINISHES, sealed_block
from tollkeeper.providers.event_reader import BlockReader, OpenBlock
from tollkeeper.providers.usage_reports import report_in

# Of all searches in one answer.
_QUERY_CHARACTERS_MAX = 1 << 20
# `pause_turn`: the answer isn't complete, and the client has to send another request to continue.
_FINISHES = {**FINISHES, "pause_turn": Finish.LENGTH, "refusal": Finish.CONTENT_FILTER}
_CHUNK = "chunk"


@dataclass(slots=True)
class _OpenBlock(OpenBlock):
    # In the text of the whole answer.
    text_start: int = 0
    citations: list[Citation] = field(default_factory=list)
    # A web search, if the client can read it, and the pieces of the query in JSON.
    search: FreeObject | None = None
    query: list[str] = field(default_factory=list)


class MessagesAnswer(BlockReader[_OpenBlock]):
    """The protocol has no field for several choices."""

    def __init__(self, call: Call, *, secrets: tuple[str, ...] = ()) -> None:
        super().__init__(call, secrets=secrets)
        self._text_length = 0
        self._usage = UsageReader()
        self._reads_search_blocks = call.prompt.reads_search_blocks
        self._query_characters_left = _QUERY_CHARACTERS_MAX
        stop = call.prompt.sampling.stop
        self._stops = [stop] if isinstance(stop, str) else stop or []

    @staticmethod
    def usage_in(body: bytes) -> UsageReport | None:
        return report_in(decode_usage_only(body).usage, partial(UsageReader().read, is_final=True))

    def _read_body(self, body: bytes) -> None:
        message = records.decode_message(body)
        error = self._read_blocks(message.content, message.error)
        self._read_usage(message.usage, is_final=True)
        if error is not None:
            self._fail_with(error)
        else:
            self._read_stop(message)
            self._end()

    def _read_record(self, payload: bytes) -> None:
        event = records.decode_event(payload)
        if event is None:
            return
        self._open()
        match event.type:
            case records.BLOCK_DELTA:
                self._extend_block(event.index, event.delta or BlockDelta())
            case records.BLOCK_START:
                self._begin_block(event.index, event.content_block)
            case records.BLOCK_STOP:
                self._end_block(event.index)
            case records.MESSAGE_START:
                self._read_usage(records.decode_start(event.message).usage, is_final=False)
            case records.MESSAGE_DELTA:
                self._read_usage(event.usage, is_final=True)
                if event.delta is not None:
                    self._read_stop(event.delta)
            case records.MESSAGE_STOP:
                self._end()
            case _:
                self._fail_with(error_record(event.error))

    def _begin_block(self, index: int, raw: msgspec.Raw) -> None:
        record = records.decode_block(raw)
        # Some proxies insert a second message, so the index of an ended block may occur again.
        block = self._blocks[index] = _OpenBlock(text_start=self._text_length)
        if record is None:
            if self._asks_for_searches and records.is_search_result(raw):
                self._report_search()
            if self._reads_search_blocks:
                block.search = records.decode_search_block(raw)
            return
        block.kind = record.type or ""
        match record.type:
            case records.TOOL_USE:
                self._begin_call(block, record)
            case records.REDACTED_THINKING:
                if record.data:
                    sealed = sealed_block({"type": record.type, "data": record.data})
                    self._emit(Delta(0, sealed_reasoning=sealed))
            case _:
                self._emit_text(record.text)
                self._emit_reasoning(block, record.thinking, record.signature)
        block.citations += record.citations or ()

    def _begin_call(self, block: _OpenBlock, record: Block) -> None:
        if not record.id:
            raise MalformedAnswer("a call has no id")
        block.call_index = self._count_call()
        arguments = value_or_none(record.input)
        # In a stream, `input` is empty at first, and the arguments follow in pieces.
        if arguments is not None and decode_any(arguments) not in ({}, None, ""):
            block.arguments = bytes(arguments).decode()
        self._emit_call(block.call_index, record.id, record.name or "")

    def _extend_block(self, index: int, delta: BlockDelta) -> None:
        block = self._blocks.get(index)
        if block is None:
            raise MalformedAnswer("a block that has not begun continues")
        if self._require_open(block).search is not None:
            self._query_characters_left -= len(delta.partial_json or "")
            if self._query_characters_left < 0:
                raise MalformedAnswer("its searches are too long")
            block.query.append(delta.partial_json or "")
        elif block.kind:
            self._emit_text(delta.text)
            self._emit_reasoning(block, delta.thinking, delta.signature)
            self._emit_arguments(block, delta.partial_json or "")
            if delta.citation is not None:
                block.citations.append(delta.citation)

    def _emit_text(self, text: str | None) -> None:
        if text:
            self._text_length += len(text)
            self._emit(Delta(0, text))

    def _seal(self, reasoning: str, signature: str) -> str:
        return sealed_block(
            {"type": records.THINKING, "thinking": reasoning, "signature": signature}
        )

    def _emit_end(self, block: _OpenBlock) -> None:
        if block.search is not None:
            self._emit_search(block.search, "".join(block.query))
        annotations = tuple(
            Annotation(cited.url, cited.title or "", block.text_start, self._text_length)
            for cited in block.citations
            if cited.url
        )
        if annotations:
            self._emit(Delta(0, annotations=annotations))

    def _emit_search(self, written: FreeObject, query: str) -> None:
        """Doesn't set `accepted` (`EventReader._accept_if_searched`)."""
        if query:
            asked = decode_any(msgspec.Raw(query.encode("utf-8", "replace")))
            if not isinstance(asked, dict):
                raise MalformedAnswer("the query of a search is not an object")
            written = {**written, "input": asked}
        self._events.append(Delta(0, search_block=SearchBlock(written)))

    def _read_usage(self, usage: msgspec.Raw, *, is_final: bool) -> None:
        report = report_in(usage, partial(self._usage.read, is_final=is_final))
        self._report(report, is_final=is_final)

    def _read_stop(self, record: BlockDelta | records.Message) -> None:
        reason, sequence = record.stop_reason, record.stop_sequence
        if reason is not None:
            stopped_by = sequence if sequence in self._stops else None
            self._finish(_FINISHES.get(reason, reason), reason, stopped_by)

    def _fail_with(self, error: object) -> None:
        self.fail(self._error_for(with_status(error, "type", records.STATUSES)))


class _Chunk(msgspec.Struct, gc=False):
    # In base64.
    bytes: str = ""


_chunk_decoder = msgspec.json.Decoder(_Chunk)


class BedrockMessagesAnswer(MessagesAnswer):
    """Each frame has one event in base64, and the stream may end with an AWS exception instead of
    an `error` event."""

    def _read_payload(self, payload: bytes) -> None:
        name, content = read_record(payload)
        if is_exception(name):
            self.fail(failure_of(name, content, accepted=self.accepted, secrets=self._secrets))
        elif name == _CHUNK:
            super()._read_payload(self._split_characters.join(_unwrapped(content)))
        else:
            self._count_empty_record()


def _unwrapped(content: msgspec.Raw) -> bytes:
    try:
        return base64.b64decode(decode(_chunk_decoder, content).bytes, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedAnswer("a chunk is not base64") from error
