"""Reads a Converse answer, streamed or whole, as the gateway's own events. Knows no connection.

The report of usage comes after the reason why the answer ended, so a stream is complete with the
report, or where its body ends after a reason. It is malformed where it is longer than its bound.
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
from tollkeeper.backends.aws_exceptions import failure_of, is_exception, read_record
from tollkeeper.backends.converse import records
from tollkeeper.backends.converse.reasoning import sealed_redacted, sealed_text
from tollkeeper.backends.converse.records import Block, Metadata, ReasoningBlock, ToolUse
from tollkeeper.backends.converse.usage import read_usage
from tollkeeper.backends.event_reader import EventReader
from tollkeeper.backends.refusals import refusal_record
from tollkeeper.domain.errors import BackendFailed
from tollkeeper.domain.inference import (
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
    """A block that is being read."""

    # The number of a call among the answer's calls; None for other blocks.
    call_index: int | None = None
    has_arguments: bool = False
    reasoning: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)
    redacted: list[str] = field(default_factory=list)
    ended: bool = False


class ConverseAnswer(EventReader):
    """The state of one answer. It has one choice, because the protocol has no `n`."""

    def __init__(self, call: Call, *, secrets: tuple[str, ...] = ()) -> None:
        super().__init__(call, secrets=secrets, events_per_token=_EVENTS_PER_TOKEN_MAX)
        # The protocol cannot ask for a single call, so further ones are left out of the answer.
        self._single = self._legacy or call.prompt.parallel_tool_calls is False
        self._blocks: dict[int, _OpenBlock] = {}
        self._calls_read = 0
        self._opened = False
        self._finished = False
        # The reason by which the answer is none. It is raised after the report of usage.
        self._invalid: str | None = None

    def read_whole(self, answer: records.Answer) -> list[Event]:
        """The events of an answer that is not streamed."""
        message = None if answer.output is None else answer.output.message
        content = None if message is None else message.content
        error = error_record(answer.error)
        if content is None and error is None:
            raise MalformedAnswer("it has no content")
        self._open()
        for index, block in enumerate(content or ()):
            self._read_block(index, block)
            self._end_block(index)
        self._report(answer)
        if error is not None:
            self.fail(refusal_record(error, secrets=self._secrets))
        else:
            self._finish(answer.stop_reason)
            self._end()
        return self._take_events()

    def end_body(self) -> list[Event]:
        """A report may be missing."""
        if self._finished and not self.ended:
            self._end()
        else:
            super().end_body()
        return self._take_events()

    def _read_payload(self, payload: bytes) -> None:
        name, content = read_record(payload)
        emitted_before = len(self._events)
        if is_exception(name):
            self.fail(failure_of(name, content, accepted=self.accepted, secrets=self._secrets))
            return
        self._open()
        emitted_before = min(emitted_before + 1, len(self._events))
        self._read_event(name, content)
        if len(self._events) == emitted_before:
            self._count_empty_record()

    def _read_event(self, name: str, content: msgspec.Raw) -> None:
        match name:
            case records.BLOCK_DELTA:
                piece = records.decode_delta(content)
                self._read_block(piece.content_block_index, piece.delta or Block())
            case records.BLOCK_START:
                begun = records.decode_start(content)
                self._read_block(begun.content_block_index, begun.start or Block())
            case records.BLOCK_STOP:
                self._end_block(records.decode_delta(content).content_block_index)
            case records.MESSAGE_STOP:
                self._finish(records.decode_stop(content).stop_reason)
            case records.METADATA:
                self._report(records.decode_metadata(content))
                if self._finished:
                    self._end()

    # Blocks.

    def _read_block(self, index: int, block: Block) -> None:
        """Reads a block, its beginning or a piece of it: some models begin a text without saying so."""
        read = self._blocks.get(index)
        if read is None:
            read = self._blocks[index] = _OpenBlock()
        if read.ended:
            raise MalformedAnswer("a block goes on after its end")
        if block.text:
            self._emit(Delta(0, block.text))
        if block.citations_content is not None:
            for cited in block.citations_content.content or ():
                if cited.text:
                    self._emit(Delta(0, cited.text))
        if block.reasoning_content is not None:
            self._read_reasoning(read, block.reasoning_content)
        if block.tool_use is not None:
            self._read_tool_use(read, block.tool_use)

    def _read_reasoning(self, read: _OpenBlock, block: ReasoningBlock) -> None:
        whole = block.reasoning_text
        text = block.text if whole is None else whole.text
        signature = block.signature if whole is None else whole.signature
        if text:
            read.reasoning.append(text)
            self._emit(Delta(0, reasoning=text))
        if signature:
            read.signature.append(signature)
        if block.redacted_content:
            read.redacted.append(block.redacted_content)

    def _read_tool_use(self, read: _OpenBlock, use: ToolUse) -> None:
        if use.type == records.SERVER_TOOL_USE:
            return
        if use.tool_use_id is not None or use.name is not None:
            self._begin_call(read, use)
        written = given(use.input)
        if written is not None and read.call_index is not None:
            # A piece of a stream is a text; the whole answer has the object itself.
            value = anything(written)
            arguments = value if isinstance(value, str) else bytes(written).decode()
            if arguments:
                read.has_arguments = True
                self._emit_call(read.call_index, arguments=arguments)

    def _begin_call(self, read: _OpenBlock, use: ToolUse) -> None:
        if not use.tool_use_id or not use.name:
            raise MalformedAnswer("a call has no id or no name")
        if read.call_index is not None:
            raise MalformedAnswer("a call begins twice")
        read.call_index = self._calls_read
        self._calls_read += 1
        self._emit_call(read.call_index, use.tool_use_id, use.name)

    def _end_block(self, index: int) -> None:
        read = self._blocks.get(index)
        if read is None or read.ended:
            return
        read.ended = True
        if read.call_index is not None and not read.has_arguments:
            self._emit_call(read.call_index, arguments=_NO_ARGUMENTS)
        if read.signature:
            sealed = sealed_text("".join(read.reasoning), "".join(read.signature))
            self._emit(Delta(0, sealed_reasoning=sealed))
        if read.redacted:
            self._emit(Delta(0, sealed_reasoning=sealed_redacted("".join(read.redacted))))

    def _emit_call(
        self, index: int, id_: str | None = None, name: str | None = None, arguments: str = ""
    ) -> None:
        if self._single and index:
            self._count_empty_record()
        elif self._legacy:
            self._emit(Delta(0, function_call=FunctionCallPiece(name, arguments)))
        else:
            self._emit(Delta(0, tool_calls=(ToolCallPiece(index, id_, name, arguments),)))

    # The beginning and the end.

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._events.append(Opened())

    def _report(self, metadata: Metadata) -> None:
        report = report_alone(metadata)
        if report is None:
            return
        if tells_of_use(report):
            self.accepted = True
        self._events.append(report)

    def _finish(self, reason: str | None) -> None:
        """Notes why the answer ended. A repeated end is ignored."""
        if reason is None or self._finished:
            return
        self._finished = True
        if reason in records.FAILURES:
            self._invalid = reason
            self.failing = True
            return
        finish: str = records.FINISHES.get(reason, reason)
        if finish == Finish.TOOL_CALLS and self._legacy:
            finish = Finish.FUNCTION_CALL
        self._emit(Delta(0, finish=finish))

    def _end(self) -> None:
        if not self._finished:
            raise MalformedAnswer("it has no end")
        if self._invalid is not None:
            # A caller can provoke it with its tools, so it does not speak against the replica.
            message = f"The model's answer is no valid one ({self._invalid})."
            self.fail(BackendFailed(message, charged=True, blameless=True))
        else:
            self.done = True


def report_alone(metadata: Metadata) -> UsageReport | None:
    """The report in an answer of which nothing else can be read."""
    found = given(metadata.usage)
    return None if found is None else read_usage(anything(found), metadata.tier)
