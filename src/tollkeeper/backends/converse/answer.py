"""Converts a Converse answer, streamed or not, to the gateway's events. Does no I/O.

In a stream, the usage report comes after the stop reason. So a stream ends with the usage report, or
with the end of the HTTP body after a stop reason.
"""

from dataclasses import dataclass, field

from tollkeeper.backends.answer_json import MalformedAnswer, decode_any, error_record, value_or_none
from tollkeeper.backends.aws_exceptions import failure_of, is_exception, read_record
from tollkeeper.backends.converse import records
from tollkeeper.backends.converse.reasoning import sealed_redacted, sealed_text
from tollkeeper.backends.converse.records import Block, Metadata, ToolUse
from tollkeeper.backends.converse.usage import read_usage
from tollkeeper.backends.event_reader import BlockReader, OpenBlock
from tollkeeper.domain.inference import Delta, Event, UsageReport


@dataclass(slots=True)
class _OpenBlock(OpenBlock):
    # Pieces of encrypted reasoning.
    redacted: list[str] = field(default_factory=list)


class ConverseAnswer(BlockReader[_OpenBlock]):
    """Holds the state of one answer. The answer has one choice, because the protocol has no field
    for several."""

    enforces_single_call = True
    # The stop reason, if it means that the answer is invalid. The answer fails only at its end, so
    # that the usage report can still arrive.
    _invalid: str | None = None

    def read_whole(self, answer: records.Answer) -> list[Event]:
        """Returns the events of an answer that is not streamed."""
        message = None if answer.output is None else answer.output.message
        content = None if message is None else message.content
        error = error_record(answer.error)
        if content is None and error is None:
            raise MalformedAnswer("it has no content")
        self._open()
        for index, block in enumerate(content or ()):
            self._read_block(index, block)
            self._end_block(index)
        self._report(report_from_metadata(answer))
        if error is not None:
            self.fail(self._error_for(error))
        else:
            self._read_stop(answer.stop_reason)
            self._end()
        return self._take_events()

    def end_body(self) -> list[Event]:
        """Ends the answer properly if the stop reason has arrived and only the usage report is
        missing."""
        if self._finished and not self.ended:
            self._end()
        else:
            super().end_body()
        return self._take_events()

    def _read_record(self, payload: bytes) -> None:
        name, content = read_record(payload)
        if is_exception(name):
            self.fail(failure_of(name, content, accepted=self.accepted, secrets=self._secrets))
            return
        self._open()
        match name:
            case records.BLOCK_DELTA:
                piece = records.decode_delta(content)
                self._read_block(piece.content_block_index, piece.delta or Block())
            case records.BLOCK_START:
                beginning = records.decode_start(content)
                self._read_block(beginning.content_block_index, beginning.start or Block())
            case records.BLOCK_STOP:
                self._end_block(records.decode_delta(content).content_block_index)
            case records.MESSAGE_STOP:
                self._read_stop(records.decode_stop(content).stop_reason)
            case records.METADATA:
                self._report(report_from_metadata(records.decode_metadata(content)))
                if self._finished:
                    self._end()

    def _read_block(self, index: int, block: Block) -> None:
        """Reads a whole block, the beginning of a block, or a piece of a block. A piece may be the
        first record of its block, because some models send no start event for a text."""
        open_block = self._require_open(self._blocks.setdefault(index, _OpenBlock()))
        if block.text:
            self._emit(Delta(0, block.text))
        if block.citations_content is not None:
            for cited in block.citations_content.content or ():
                if cited.text:
                    self._emit(Delta(0, cited.text))
        reasoning = block.reasoning_content
        if reasoning is not None:
            # Only an answer that is not streamed has `reasoning_text`.
            signed = reasoning.reasoning_text or reasoning
            self._emit_reasoning(open_block, signed.text, signed.signature)
            if reasoning.redacted_content:
                open_block.redacted.append(reasoning.redacted_content)
        if block.tool_use is not None and block.tool_use.type != records.SERVER_TOOL_USE:
            self._read_tool_use(open_block, block.tool_use)

    def _read_tool_use(self, open_block: _OpenBlock, use: ToolUse) -> None:
        if use.tool_use_id is not None or use.name is not None:
            if not use.tool_use_id or not use.name:
                raise MalformedAnswer("a call has no id or no name")
            if open_block.call_index is not None:
                raise MalformedAnswer("a call begins twice")
            open_block.call_index = self._count_call()
            self._emit_call(open_block.call_index, use.tool_use_id, use.name)
        arguments = value_or_none(use.input)
        if arguments is not None:
            # In a stream, the arguments are pieces of a JSON text. In an answer that is not streamed,
            # they are a JSON object.
            value = decode_any(arguments)
            self._emit_arguments(
                open_block, value if isinstance(value, str) else bytes(arguments).decode()
            )

    def _seal(self, reasoning: str, signature: str) -> str:
        return sealed_text(reasoning, signature)

    def _emit_end(self, block: _OpenBlock) -> None:
        if block.redacted:
            self._emit(Delta(0, sealed_reasoning=sealed_redacted("".join(block.redacted))))

    def _read_stop(self, reason: str | None) -> None:
        """Records the reason why the answer ended. Ignores all reasons after the first."""
        if reason is None or self._finished:
            return
        if reason in records.FAILURES:
            self._finished = self.failing = True
            self._invalid = reason
        else:
            self._finish(records.FINISHES.get(reason, reason), reason)

    def _end(self) -> None:
        if not self._finished:
            raise MalformedAnswer("it has no finish reason")
        if self._invalid is not None:
            self._fail_by_model(self._invalid)
        else:
            self.done = True


def report_from_metadata(metadata: Metadata) -> UsageReport | None:
    """Returns the usage report in a metadata record or a whole answer; None if there is no usage."""
    raw_usage = value_or_none(metadata.usage)
    return None if raw_usage is None else read_usage(decode_any(raw_usage), metadata.tier)
