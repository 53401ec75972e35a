"""Converts the records of a streamed chat answer to events, and checks the answer.

The checks are: only requested choices occur, each choice finishes and has no output after its end, no
choice has more pieces (events with content) than allowed, and `[DONE]` ends the stream. This module
does no I/O.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tollkeeper.backends.answer_json import MalformedAnswer, error_record, usage_means_charge
from tollkeeper.backends.chat.answer import (
    Chunk,
    chunk_usage,
    decode_chunk,
    delta_of_chunk,
    has_free_finish,
    has_output,
    text_piece,
)
from tollkeeper.backends.chat.text_relay import TextRelay
from tollkeeper.backends.config import NO_BILLING_RULES, BillingRules
from tollkeeper.backends.event_reader import StreamReader, pieces_max
from tollkeeper.backends.port import TextWriter
from tollkeeper.backends.refusals import refusal_record
from tollkeeper.backends.transport.framing import RecordParser
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import Call, Delta, Event, Opened, UsageReport

_DONE = b"[DONE]"


class ChatStreamReader(StreamReader):
    """Reads one streamed answer. An error record ends the answer: the reader does not wait for a later
    usage report."""

    # The failure of an answer whose finish reason means that its tokens are free. The answer fails at
    # its end, because a usage report with a price may follow the finish reason.
    _late_failure: TollkeeperError | None = None

    def __init__(
        self,
        call: Call,
        *,
        secrets: tuple[str, ...] = (),
        billing_rules: BillingRules = NO_BILLING_RULES,
    ) -> None:
        super().__init__(call, secrets=secrets)
        self._billing_rules = billing_rules
        self.pieces_max = pieces_max(call.output_tokens_held)
        # For each choice: the number of pieces so far, and whether the choice has finished.
        self.pieces = [0] * call.choices
        self.finished = [False] * call.choices
        self._opened = False
        self._service_tier: str | None = None

    def open_relay(
        self, parser: RecordParser, write: TextWriter, count: Callable[[str], None]
    ) -> Callable[[bytes], int] | None:
        if len(self.pieces) != 1:
            return None
        return TextRelay(
            *(write, count),
            record_bytes_max=parser.record_bytes_max,
            text_of=self.text_of,
            pieces=self.pieces,
            finished=self.finished,
            pieces_max=self.pieces_max,
        ).take

    def text_of(self, payload: bytes) -> str | None:
        """Returns the text of a record that only adds text to the first choice. Returns None for any
        other record, and for a record that names a new service tier. Does not change the state of the
        answer."""
        try:
            chunk = decode_chunk(payload)
        except MalformedAnswer:
            return None
        piece = text_piece(chunk)
        if piece is None or piece[0] != 0 or chunk.service_tier not in (None, self._service_tier):
            return None
        return piece[1]

    def end_body(self) -> list[Event]:
        if self._late_failure is not None:
            self.fail(self._late_failure)
        return super().end_body()

    def _end(self) -> None:
        if self._late_failure is not None:
            self.fail(self._late_failure)
            return
        if not all(self.finished):
            raise MalformedAnswer("it ended before every choice was complete")
        self.done = True

    def _read_payload(self, payload: bytes) -> None:
        if payload.startswith(_DONE):
            self._end()
            return
        chunk = decode_chunk(payload)
        self._service_tier = chunk.service_tier or self._service_tier
        piece = text_piece(chunk) if self._opened else None
        if piece is not None:
            index, text = piece
            if 0 <= index < len(self.pieces) and not self.finished[index]:
                # A chunk that only adds text takes this faster path. Of the checks below, such a
                # chunk needs only the check of the number of pieces.
                self.pieces[index] += 1
                if self.pieces[index] > self.pieces_max:
                    raise MalformedAnswer("a choice is longer than the output limit allows")
                self.accepted = True
                self._events.append(Delta(index, text))
                return
        record = error_record(chunk.error)
        is_free = has_free_finish(chunk, self._billing_rules, len(self.pieces))
        if record is not None or is_free:
            self._read_failure(chunk, record, is_free=is_free)
            return
        self._open(chunk)
        for choice in chunk.choices or ():
            if not 0 <= choice.index < len(self.pieces):
                raise MalformedAnswer("it has a choice that was not asked for")
            delta = delta_of_chunk(choice)
            if delta is None:
                self._count_empty_record()
                continue
            self._count_piece(choice.index)
            self._count_images(delta.images)
            if self._admit(delta):
                self.accepted = True
                self._events.append(delta)
        report = chunk_usage(chunk, self._service_tier)
        if report is not None:
            self.accepted = True
            self._events.append(self._marked(report, chunk))

    def _marked(self, report: UsageReport, chunk: Chunk) -> UsageReport:
        """Marks a report that comes together with unfinished choices as a running total, unless the
        backend bills running totals. A report without choices is final."""
        rules = self._billing_rules
        if (
            report.usage is None
            or rules.bills_running_totals
            or not chunk.choices
            or all(self.finished)
        ):
            return report
        return UsageReport(replace(report.usage, is_running_total=True))

    def _read_failure(self, chunk: Chunk, record: Any, *, is_free: bool) -> None:
        """Reads an error record. Such a record may also contain the last output of the answer, and
        usage that means that the call is charged. Both are emitted. A delta that only ends a choice
        is not output. `is_free` means that the backend bills no tokens for the answer."""
        self._open(chunk)
        for choice in chunk.choices or ():
            if 0 <= choice.index < len(self.finished) and not self.finished[choice.index]:
                delta = delta_of_chunk(choice)
                if delta is not None and has_output(delta):
                    self.accepted = True
                    self._events.append(replace(delta, finish=None))
        failure = (
            BackendFailed("The backend failed while it was answering.", charged=True)
            if self.accepted
            else refusal_record(record, secrets=self._secrets)
        )
        failure.tokens_are_free = is_free
        report = chunk_usage(chunk, self._service_tier)
        if report is not None and usage_means_charge(report):
            self.accepted = True
            self._events.append(report)
        if record is None:
            self.finished[0], self._late_failure = True, failure
        else:
            self.fail(failure)

    def _open(self, chunk: Chunk) -> None:
        if not self._opened:
            self._opened = True
            self._events.append(Opened(chunk.system_fingerprint, chunk.service_tier))

    def _count_piece(self, index: int) -> None:
        self.pieces[index] += 1
        if self.pieces[index] > self.pieces_max:
            raise MalformedAnswer("a choice is longer than the output limit allows")

    def _admit(self, delta: Delta) -> bool:
        """Tells whether to emit a delta. A repeated end of a choice is not emitted. Raises
        MalformedAnswer for output after the end of a choice."""
        if self.finished[delta.choice]:
            if delta != Delta(delta.choice, finish=delta.finish):
                raise MalformedAnswer("a choice goes on after its end")
            return False
        if delta.finish is not None:
            self.finished[delta.choice] = True
        return True
