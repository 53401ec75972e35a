"""Converts a streamed chat answer's records to events. Only requested choices may occur, each must
finish, without output after that and with at most as many pieces (events with content) as allowed,
and `[DONE]` or the final usage ends the stream. Does no I/O."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import ref

from msgspec.structs import replace

from tollkeeper.core.errors import BackendFailed, TollkeeperError
from tollkeeper.core.inference import Call, Delta, Event, Opened, ToolCallPiece, UsageReport
from tollkeeper.core.port import TextWriter
from tollkeeper.core.prompt import decode_arguments
from tollkeeper.core.usage import ReportedUsage
from tollkeeper.providers.answer_json import MalformedAnswer, error_record
from tollkeeper.providers.chat.answer import (
    Chunk,
    ChunkChoice,
    chunk_usage,
    decode_chunk,
    delta_of_chunk,
    has_free_finish,
    has_output,
    text_piece,
    with_asked_alternatives,
)
from tollkeeper.providers.chat.text_relay import TextRelay
from tollkeeper.providers.config import NO_BILLING_RULES, BillingRules
from tollkeeper.providers.event_reader import StreamReader, pieces_max
from tollkeeper.providers.refusals import refusal_record
from tollkeeper.providers.transport.framing import RecordParser
from tollkeeper.providers.usage_reports import usage_means_charge

_DONE = b"[DONE]"


@dataclass(slots=True)
class _ToolCallInProgress:
    # In the events.
    index: int
    # As soon as a piece has given them.
    id: str | None
    name: str | None
    # Another id certainly begins a new call, because the first piece was a whole call, or a
    # later one had the same id or none.
    keeps_id: bool


class ChatStreamReader(StreamReader):
    """Doesn't wait for a usage report after an error record."""

    # The finish reason means that tokens are free. The answer fails only at its end, because a
    # usage report with a price may follow.
    _late_failure: TollkeeperError | None = None
    # A strong reference would form a cycle, since the relay refers to the reader.
    _relay: Callable[[], TextRelay | None] = staticmethod(lambda: None)

    def __init__(
        self,
        call: Call,
        *,
        secrets: tuple[str, ...] = (),
        billing_rules: BillingRules = NO_BILLING_RULES,
    ) -> None:
        super().__init__(call, secrets=secrets)
        self._call = call
        self._billing_rules = billing_rules
        self.pieces_max = pieces_max(call.output_tokens_held)
        self.pieces = [0] * call.choices
        self.finished = [False] * call.choices
        self._opened = False
        # Readable, and not a running total.
        self._has_final_usage = False
        self._service_tier: str | None = None
        # By choice and the backend's index; and each choice's indexes in the events.
        self._tool_calls: dict[tuple[int, int], _ToolCallInProgress] = {}
        self._used_indexes: list[set[int]] = [set() for _ in range(call.choices)]

    def open_relay(
        self, parser: RecordParser, write: TextWriter, count: Callable[[str], None]
    ) -> Callable[[bytes], int] | None:
        if len(self.pieces) != 1:
            return None
        relay = TextRelay(
            *(write, count),
            record_bytes_max=parser.record_bytes_max,
            text_of=self.text_of,
            pieces=self.pieces,
            finished=self.finished,
            pieces_max=self.pieces_max,
        )
        self._relay = ref(relay)
        return relay.take

    def text_of(self, payload: bytes) -> str | None:
        """Of a record that only adds text to the first choice, else None; also None if it names a
        new tier. Doesn't change state."""
        try:
            chunk = decode_chunk(payload)
        except MalformedAnswer:
            return None
        piece = text_piece(chunk)
        if piece is None or piece[0] != 0 or chunk.service_tier not in (None, self._service_tier):
            return None
        return piece[1]

    def end_body(self) -> list[Event]:
        """Perplexity and GPUStack don't send `[DONE]`. Complete if every choice has finished and
        the final usage has arrived."""
        if self._late_failure is not None:
            self.fail(self._late_failure)
        elif self._has_final_usage and all(self.finished) and not self.ended:
            self.done = True
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
        tier = chunk.service_tier
        if tier and tier != self._service_tier:
            self._take_tier(tier)
        piece = text_piece(chunk) if self._opened else None
        if piece is not None:
            index, text = piece
            if 0 <= index < len(self.pieces) and not self.finished[index]:
                # A faster path for a chunk that only adds text. It needs only this
                # check.
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
        for choice in chunk.choices or ():
            if not 0 <= choice.index < len(self.pieces):
                raise MalformedAnswer("it has a choice that was not asked for")
            self._open(chunk)
            delta = self._delta_of(choice)
            if delta is None:
                self._count_empty_record()
                continue
            self._count_piece(choice.index)
            self._count_images(delta.images)
            if self._admit(delta):
                self.accepted = True
                self._events.append(delta)
        report = chunk_usage(chunk, self._service_tier, self._billing_rules)
        if report is not None:
            self._open(chunk)
            self.accepted = True
            report = self._marked(report, chunk)
            usage = report.usage
            self._has_final_usage = (
                usage is not None
                and usage.completion_tokens is not None
                and not usage.is_running_total
            )
            self._events.append(report)

    def _marked(self, report: UsageReport, chunk: Chunk) -> UsageReport:
        """With unfinished choices it's a running total, unless the backend bills those. Without
        choices it's final."""
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
        """The record may also have the last output, and usage that means the call is charged; both
        are emitted. Ending a choice isn't output. `is_free`: the backend bills no tokens for the
        answer."""
        self._open(chunk)
        for choice in chunk.choices or ():
            if 0 <= choice.index < len(self.finished) and not self.finished[choice.index]:
                delta = self._delta_of(choice)
                if delta is not None and has_output(delta):
                    self.accepted = True
                    self._events.append(replace(delta, finish=None))
        failure = (
            BackendFailed("The backend failed while it was answering.", charged=True)
            if self.accepted
            else refusal_record(record, secrets=self._secrets)
        )
        failure.tokens_are_free = is_free
        report = chunk_usage(chunk, self._service_tier, self._billing_rules)
        if report is not None and usage_means_charge(report):
            self.accepted = True
            self._events.append(report)
        if record is None:
            self.finished[0], self._late_failure = True, failure
        else:
            self.fail(failure)

    def _open(self, chunk: Chunk) -> None:
        """At the first record with a choice, usage or error. An earlier one, such as Azure's first,
        usually names no fingerprint or tier."""
        if not self._opened:
            self._opened = True
            self._events.append(Opened(chunk.system_fingerprint, self._service_tier))

    def _take_tier(self, tier: str) -> None:
        """After the beginning, reports it as usage: the price depends on it even without a usage
        report."""
        self._service_tier = tier
        relay = self._relay()
        if relay is not None:
            # The learned bytes may name the previous tier.
            relay.forget()
        if self._opened:
            self._events.append(UsageReport(ReportedUsage(service_tier=tier)))

    def _delta_of(self, choice: ChunkChoice) -> Delta | None:
        delta = delta_of_chunk(choice)
        if delta is not None and delta.logprobs is not None:
            delta = with_asked_alternatives(delta, self._call)
        if delta is None or not delta.tool_calls:
            return delta
        pieces = tuple(self._with_free_index(choice.index, piece) for piece in delta.tool_calls)
        return replace(delta, tool_calls=pieces)

    def _with_free_index(self, choice: int, piece: ToolCallPiece) -> ToolCallPiece:
        """Some servers give every call the index 0, so a piece with a name and another id begins a
        new call, with the next free index. Others give every piece of a call another id, so it
        belongs to the same call until the server has shown otherwise (`keeps_id`).

        Repeated names and ids are removed, because clients join all pieces' names, and some join
        the ids.
        """
        call = self._tool_calls.get((choice, piece.index))
        has_other_id = call is not None and piece.id not in (None, call.id)
        if call is None or (has_other_id and piece.name and call.keeps_id):
            used = self._used_indexes[choice]
            index = piece.index if piece.index not in used else max(used) + 1
            used.add(index)
            is_whole = decode_arguments(piece.arguments) is not None
            call = _ToolCallInProgress(index, piece.id, piece.name, keeps_id=is_whole)
            self._tool_calls[choice, piece.index] = call
            return replace(piece, index=index)
        if not has_other_id:
            call.keeps_id = True
        new_id = piece.id if call.id is None else None
        new_name = piece.name if piece.name != call.name else None
        call.id, call.name = call.id or piece.id, call.name or piece.name
        return replace(piece, index=call.index, id=new_id, name=new_name)

    def _count_piece(self, index: int) -> None:
        self.pieces[index] += 1
        if self.pieces[index] > self.pieces_max:
            raise MalformedAnswer("a choice is longer than the output limit allows")

    def _admit(self, delta: Delta) -> bool:
        """A repeated end isn't emitted. Raises MalformedAnswer for output after the end."""
        if self.finished[delta.choice]:
            if delta != Delta(delta.choice, finish=delta.finish):
                raise MalformedAnswer("a choice goes on after its end")
            return False
        if delta.finish is not None:
            self.finished[delta.choice] = True
        return True
