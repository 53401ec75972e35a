"""Converts a Converse answer, streamed or not, to events. Does no I/O. A stream's usage comes after
the stop reason and ends it, or else the HTTP body's end does."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tollkeeper.core.inference import Delta, Event, Finish, UsageReport
from tollkeeper.core.prompt import FreeObject
from tollkeeper.core.usage import ReportedUsage, all_writes, read_count
from tollkeeper.providers.answer_json import MalformedAnswer, decode_any, value_or_none
from tollkeeper.providers.bedrock import failure_of, is_exception, read_record
from tollkeeper.providers.claude_thinking import FINISHES, sealed_block
from tollkeeper.providers.converse import records
from tollkeeper.providers.converse.records import Block, Metadata, ToolUse
from tollkeeper.providers.event_reader import BlockReader, OpenBlock
from tollkeeper.providers.usage_reports import Counts, known_details, report_in, usage_report

_FINISHES = {
    **FINISHES,
    "content_filtered": Finish.CONTENT_FILTER,
    "guardrail_intervened": Finish.CONTENT_FILTER,
}
# The model wrote an invalid answer.
_FAILURES = frozenset({"malformed_model_output", "malformed_tool_use"})
# Cache reads and writes have two names, and some answers have both.
_COUNTS = Counts(
    prompt_tokens="inputTokens",
    completion_tokens="outputTokens",
    total_tokens="totalTokens",
    cached_tokens="cacheReadInputTokens cacheReadInputTokenCount",
    cache_write_tokens="cacheWriteInputTokens cacheWriteInputTokenCount",
)
_ONE_HOUR = "1h"


@dataclass(slots=True)
class _OpenBlock(OpenBlock):
    # Encrypted reasoning.
    redacted: list[str] = field(default_factory=list)


class ConverseAnswer(BlockReader[_OpenBlock]):
    """The protocol has no field for several choices."""

    enforces_single_call = True
    # Means an invalid answer. It fails only at its end, so the usage can still arrive.
    _invalid: str | None = None

    @staticmethod
    def usage_in(body: bytes) -> UsageReport | None:
        return _report(records.decode_metadata_only(body))

    def end_body(self) -> list[Event]:
        """Properly, if only the usage is missing."""
        if self._finished and not self.ended:
            self._end()
        else:
            super().end_body()
        return self._take_events()

    def _read_body(self, body: bytes) -> None:
        answer = records.decode_answer(body)
        error = self._read_blocks(answer.content, answer.error)
        self._report(_report(answer))
        if error is not None:
            self.fail(self._error_for(error))
        else:
            self._read_stop(answer.stop_reason)
            self._end()

    def _read_record(self, payload: bytes) -> None:
        name, content = read_record(payload)
        if is_exception(name):
            self.fail(failure_of(name, content, accepted=self.accepted, secrets=self._secrets))
            return
        self._open()
        if name not in records.EVENTS:
            return
        event = records.decode_event(content)
        index = event.content_block_index
        match name:
            case records.BLOCK_DELTA:
                self._begin_block(index, event.delta or Block())
            case records.BLOCK_START:
                self._begin_block(index, event.start or Block())
            case records.BLOCK_STOP:
                self._end_block(index)
            case records.MESSAGE_STOP:
                self._read_stop(event.stop_reason)
            case records.METADATA:
                self._report(_report(event))
                if self._finished:
                    self._end()

    def _begin_block(self, index: int, block: Block) -> None:
        """A whole block, its beginning or a piece. Some models send no start event for a text."""
        open_block = self._require_open(self._blocks.setdefault(index, _OpenBlock()))
        if block.text:
            self._emit(Delta(0, block.text))
        if block.citations_content is not None:
            for cited in block.citations_content.content or ():
                if cited.text:
                    self._emit(Delta(0, cited.text))
        reasoning = block.reasoning_content
        if reasoning is not None:
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
            # Pieces of JSON in a stream, otherwise an object.
            value = decode_any(arguments)
            self._emit_arguments(
                open_block, value if isinstance(value, str) else bytes(arguments).decode()
            )

    def _seal(self, reasoning: str, signature: str) -> str:
        return sealed_block({"reasoningText": {"text": reasoning, "signature": signature}})

    def _emit_end(self, block: _OpenBlock) -> None:
        if block.redacted:
            sealed = sealed_block({"redactedContent": "".join(block.redacted)})
            self._emit(Delta(0, sealed_reasoning=sealed))

    def _read_stop(self, reason: str | None) -> None:
        """Only the first."""
        if reason is None or self._finished:
            return
        if reason in _FAILURES:
            self._finished = self.failing = True
            self._invalid = reason
        else:
            self._finish(_FINISHES.get(reason, reason), reason)

    def _end(self) -> None:
        if self._invalid is not None:
            self._fail_by_model(self._invalid)
        else:
            super()._end()


def _report(metadata: Metadata) -> UsageReport | None:
    return report_in(metadata.usage, partial(read_usage, service_tier=metadata.tier))


def read_usage(reported: Any, service_tier: str | None = None) -> UsageReport:
    """`service_tier` is the one named outside of the report."""
    return usage_report(reported, lambda usage: _read(usage, service_tier), service_tier)


def _read(reported: FreeObject, service_tier: str | None) -> ReportedUsage:
    counts = _COUNTS.read(reported)
    short, long = _by_lifetime(reported.get("cacheDetails"))
    counts["cache_write_tokens"] = all_writes(counts["cache_write_tokens"], short, long)
    return ReportedUsage(
        **counts,
        cache_write_5m_tokens=short,
        cache_write_1h_tokens=long,
        cache_adds_to_prompt=True,
        service_tier=service_tier,
        prompt_details=known_details(cached_tokens=counts["cached_tokens"]),
        written=reported,
    )


def _by_lifetime(details: Any) -> tuple[int | None, int | None]:
    """Cache writes for five minutes (all but those for an hour), and for an hour."""
    listed = details if isinstance(details, list) else ()
    parts = [part for part in listed if isinstance(part, dict)]
    if not parts:
        return None, None
    counts = [(part.get("ttl"), read_count(part.get("inputTokens")) or 0) for part in parts]
    long = sum(count for lifetime, count in counts if lifetime == _ONE_HOUR)
    return sum(count for _, count in counts) - long, long
