"""Reads a Messages answer, streamed or whole, as the gateway's own events. Knows no connection.

A stream is malformed where it ends without a reason, where a block goes on after its end, and where
the answer is longer than its bound. Pings and unknown events are ignored.
"""

from dataclasses import dataclass, field

import msgspec

from tollkeeper.backends.answer_json import (
    MalformedAnswer,
    anything,
    error_record,
    given,
    tells_of_use,
)
from tollkeeper.backends.anthropic import records
from tollkeeper.backends.anthropic.records import Block, BlockDelta, Citation, StreamEvent
from tollkeeper.backends.anthropic.thinking import sealed_block
from tollkeeper.backends.anthropic.usage import UsageReader
from tollkeeper.backends.event_reader import EventReader
from tollkeeper.backends.refusals import refusal_record
from tollkeeper.domain.errors import BackendFailed
from tollkeeper.domain.inference import (
    Annotation,
    Call,
    Delta,
    Event,
    Finish,
    FunctionCallPiece,
    Opened,
    ToolCallPiece,
    UsageReport,
)

# A block of one token begins and ends, and so does its message.
_EVENTS_PER_TOKEN_MAX = 8
_NO_ARGUMENTS = "{}"


@dataclass(slots=True)
class _OpenBlock:
    """A block that has begun. Blocks of unknown types have no `kind`, and nothing of them is told."""

    kind: str | None
    # The number of a call among the answer's calls.
    call_index: int = 0
    # The arguments that came with the beginning of a call; the pieces come instead as a rule.
    arguments: str = ""
    has_arguments: bool = False
    thinking: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)
    # Where the block's text begins in the text of the answer.
    text_start: int = 0
    citations: list[Citation] = field(default_factory=list)
    ended: bool = False


class MessagesAnswer(EventReader):
    """The state of one answer. It has one choice, because the protocol has no `n`."""

    def __init__(self, call: Call, *, secrets: tuple[str, ...] = ()) -> None:
        super().__init__(call, secrets=secrets, events_per_token=_EVENTS_PER_TOKEN_MAX)
        self._blocks: dict[int, _OpenBlock] = {}
        self._call_count = 0
        self._text_length = 0
        self._usage = UsageReader()
        self._opened = False
        self._finished = False

    def read_whole(self, message: records.Message) -> list[Event]:
        """The events of an answer that is not streamed."""
        error = error_record(message.error)
        if message.content is None and error is None:
            raise MalformedAnswer("it has no content")
        self._open()
        for index, raw in enumerate(message.content or ()):
            self._begin_block(index, raw)
            self._end_block(index)
        self._report(message.usage, is_final=True)
        if error is not None:
            self._fail_with(error)
        else:
            self._finish(message.stop_reason)
            self._end()
        return self._take_events()

    def _read_payload(self, payload: bytes) -> None:
        event = records.decode_event(payload)
        emitted_before = len(self._events)
        if event is not None:
            self._open()
            emitted_before = min(emitted_before + 1, len(self._events))
            self._read_event(event)
        if len(self._events) == emitted_before:
            self._count_empty_record()

    def _read_event(self, event: StreamEvent) -> None:
        match event.type:
            case records.BLOCK_DELTA:
                self._extend_block(event.index, event.delta or BlockDelta())
            case records.BLOCK_START:
                self._begin_block(event.index, event.content_block)
            case records.BLOCK_STOP:
                self._end_block(event.index)
            case records.MESSAGE_START:
                self._report(records.decode_start(event.message).usage, is_final=False)
            case records.MESSAGE_DELTA:
                self._report(event.usage, is_final=True)
                if event.delta is not None:
                    self._finish(event.delta.stop_reason)
            case records.MESSAGE_STOP:
                self._end()
            case _:
                self._fail_with(error_record(event.error))

    # Blocks.

    def _begin_block(self, index: int, raw: msgspec.Raw) -> None:
        record = records.decode_block(raw)
        # Some proxies splice a second message in, so an index may come again after its end.
        block = self._blocks[index] = _OpenBlock(None if record is None else record.type)
        block.text_start = self._text_length
        if record is None:
            if self._asks_for_searches and records.is_found(raw):
                self._tell_of_search()
            return
        match record.type:
            case records.TOOL_USE:
                self._begin_call(block, record)
            case records.REDACTED_THINKING:
                if record.data:
                    sealed = sealed_block({"type": record.type, "data": record.data})
                    self._emit(Delta(0, sealed_reasoning=sealed))
            case _:
                self._add(
                    block,
                    BlockDelta(
                        text=record.text, thinking=record.thinking, signature=record.signature
                    ),
                )
        block.citations += record.citations or ()

    def _begin_call(self, block: _OpenBlock, record: Block) -> None:
        if not record.id:
            raise MalformedAnswer("a call has no id")
        if self._legacy and self._call_count:
            raise MalformedAnswer("it calls two functions at once")
        block.call_index = self._call_count
        self._call_count += 1
        written = given(record.input)
        # A stream begins a call with an empty object, whose pieces follow.
        if written is not None and anything(written) not in ({}, None, ""):
            block.arguments = bytes(written).decode()
        self._emit(self._call_delta(block.call_index, record.id, record.name or ""))

    def _extend_block(self, index: int, delta: BlockDelta) -> None:
        block = self._blocks.get(index)
        if block is None:
            raise MalformedAnswer("a block goes on that has not begun")
        if block.ended:
            raise MalformedAnswer("a block goes on after its end")
        if block.kind is not None:
            self._add(block, delta)

    def _add(self, block: _OpenBlock, delta: BlockDelta) -> None:
        if delta.text:
            self._text_length += len(delta.text)
            self._emit(Delta(0, delta.text))
        if delta.thinking:
            block.thinking.append(delta.thinking)
            self._emit(Delta(0, reasoning=delta.thinking))
        if delta.signature:
            block.signature.append(delta.signature)
        if delta.partial_json:
            block.has_arguments = True
            self._emit(self._call_delta(block.call_index, arguments=delta.partial_json))
        if delta.citation is not None:
            block.citations.append(delta.citation)

    def _end_block(self, index: int) -> None:
        block = self._blocks.get(index)
        if block is None or block.ended:
            return
        block.ended = True
        if block.kind == records.TOOL_USE and not block.has_arguments:
            arguments = block.arguments or _NO_ARGUMENTS
            self._emit(self._call_delta(block.call_index, arguments=arguments))
        if block.kind == records.THINKING and block.signature:
            signed = {
                "type": records.THINKING,
                "thinking": "".join(block.thinking),
                "signature": "".join(block.signature),
            }
            self._emit(Delta(0, sealed_reasoning=sealed_block(signed)))
        annotations = tuple(
            Annotation(cited.url, cited.title or "", block.text_start, self._text_length)
            for cited in block.citations
            if cited.url
        )
        if annotations:
            self._emit(Delta(0, annotations=annotations))

    def _call_delta(
        self, index: int, id_: str | None = None, name: str | None = None, arguments: str = ""
    ) -> Delta:
        if self._legacy:
            return Delta(0, function_call=FunctionCallPiece(name, arguments))
        return Delta(0, tool_calls=(ToolCallPiece(index, id_, name, arguments),))

    # The beginning and the end.

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._events.append(Opened())

    def _report(self, usage: msgspec.Raw, *, is_final: bool) -> None:
        found = given(usage)
        if found is None:
            return
        report = self._usage.read(anything(found), is_final=is_final)
        if is_final and tells_of_use(report):
            self.accepted = True
        self._events.append(report)

    def _finish(self, stop_reason: str | None) -> None:
        """Ends the choice. A repeated end is ignored."""
        if stop_reason is None or self._finished:
            return
        self._finished = True
        finish: str = records.FINISHES.get(stop_reason, stop_reason)
        if finish == Finish.TOOL_CALLS and self._legacy:
            finish = Finish.FUNCTION_CALL
        self._emit(Delta(0, finish=finish))

    def _end(self) -> None:
        if not self._finished:
            raise MalformedAnswer("it ended before the answer did")
        self.done = True

    def _fail_with(self, error: object) -> None:
        """An error record is the last word of an answer."""
        if self.accepted:
            self.fail(BackendFailed("The backend failed while it was answering.", charged=True))
        else:
            self.fail(refusal_record(records.with_status(error), secrets=self._secrets))


def report_alone(usage: msgspec.Raw) -> UsageReport | None:
    """The report in an answer of which nothing else can be read."""
    found = given(usage)
    return None if found is None else UsageReader().read(anything(found), is_final=True)
