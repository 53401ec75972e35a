"""Reads the records of a streamed chat answer as events, and holds the answer to its promises.

The promises: choices that were asked for and no others, each finished once, none longer than its
bound allows, and `[DONE]` at the end. Pure: bytes in, events out, no connection.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from tollkeeper.backends.answer_json import MalformedAnswer, error_record, tells_of_use
from tollkeeper.backends.chat.answer import (
    Chunk,
    chunk_usage,
    decode_chunk,
    delta_of_chunk,
    has_output,
    opened,
    text_piece,
)
from tollkeeper.backends.chat.text_relay import TextRelay
from tollkeeper.backends.port import TextWriter
from tollkeeper.backends.refusals import refusal_record
from tollkeeper.backends.transport.framing import RecordParser
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import Call, Delta, Event

_DONE = b"[DONE]"
# Pieces beyond the bound that are no sign of a runaway: roles, ends, and the habit of some servers
# to cut a token's text in two.
_PIECES_PER_TOKEN_MAX = 2
_PIECES_SLACK = 64


class AnswerStream:
    """The state of one streamed answer. After a failure or the end, further records are ignored."""

    def __init__(self, call: Call, *, secrets: tuple[str, ...] = ()) -> None:
        self._secrets = secrets
        self.pieces_max = _PIECES_PER_TOKEN_MAX * call.output_tokens_held + _PIECES_SLACK
        # A server may tell with empty pieces how far it has read the prompt: one a token at most.
        self._empty_max = call.model.context_length + _PIECES_SLACK
        self._empty = 0
        # By choice: pieces so far, and whether it has come to its end.
        self.pieces = [0] * call.choices
        self.finished = [False] * call.choices
        self._opened = False
        self._service_tier: str | None = None
        # Something of substance has come: the backend has accepted the call.
        self.accepted = False
        # An error record is the last word of a chat stream.
        self.failing = False
        self.done = False
        self.failure: TollkeeperError | None = None

    def read(self, payloads: Iterable[bytes]) -> list[Event]:
        """The events of these records. Should one of them be wrong, the events before it are
        returned and `failure` is set."""
        events: list[Event] = []
        try:
            for payload in payloads:
                if self.ended:
                    break
                if payload.startswith(_DONE):
                    self._end()
                else:
                    self._read_chunk(decode_chunk(payload), events)
        except MalformedAnswer as error:
            malformed = f"The backend's stream is malformed: {error}."
            self.fail(BackendFailed(malformed, charged=True))
        return events

    @property
    def ended(self) -> bool:
        return self.done or self.failure is not None

    def fail(self, failure: TollkeeperError) -> None:
        if not self.ended:
            self.failure = failure

    def end_body(self) -> list[Event]:
        ended = "The backend's stream ended before the answer did."
        self.fail(BackendFailed(ended, charged=True))
        return []

    def open_relay(
        self, parser: RecordParser, write: TextWriter, count: Callable[[str], None]
    ) -> Callable[[bytes], int] | None:
        return TextRelay(self, parser, write, count).take if len(self.pieces) == 1 else None

    def text_of(self, payload: bytes) -> str | None:
        """The text of a record that adds text to the first choice and says nothing else; None for
        any other record. Nothing is counted."""
        try:
            chunk = decode_chunk(payload)
        except MalformedAnswer:
            return None
        piece = text_piece(chunk)
        if piece is None or piece[0] != 0 or chunk.service_tier not in (None, self._service_tier):
            return None
        return piece[1]

    def _end(self) -> None:
        if not all(self.finished):
            raise MalformedAnswer("it ended before every choice did")
        self.done = True

    def _read_chunk(self, chunk: Chunk, events: list[Event]) -> None:
        self._service_tier = chunk.service_tier or self._service_tier
        piece = text_piece(chunk) if self._opened else None
        if piece is not None and 0 <= piece[0] < len(self.pieces) and not self.finished[piece[0]]:
            # Nearly every chunk. It needs none of the checks below but for the bound.
            index, text = piece
            self.pieces[index] += 1
            if self.pieces[index] > self.pieces_max:
                raise MalformedAnswer("a choice is longer than its bound")
            self.accepted = True
            events.append(Delta(index, text))
            return
        record = error_record(chunk.error)
        if record is not None:
            self._read_failure(chunk, record, events)
            return
        self._open(chunk, events)
        for choice in chunk.choices or ():
            if not 0 <= choice.index < len(self.pieces):
                raise MalformedAnswer("it has a choice that was not asked for")
            delta = delta_of_chunk(choice)
            self._count(choice.index, empty=delta is None)
            if delta is not None and self._admit(delta):
                self.accepted = True
                events.append(delta)
        report = chunk_usage(chunk, self._service_tier)
        if report is not None:
            self.accepted = True
            events.append(report)

    def _read_failure(self, chunk: Chunk, record: Any, events: list[Event]) -> None:
        """An error record may carry the last piece of the answer, and its usage: both have a price.
        That it ends its choice is no output."""
        self._open(chunk, events)
        for choice in chunk.choices or ():
            if 0 <= choice.index < len(self.finished) and not self.finished[choice.index]:
                delta = delta_of_chunk(choice)
                if delta is not None and has_output(delta):
                    self.accepted = True
                    events.append(replace(delta, finish=None))
        failure = (
            BackendFailed("The backend failed while it was answering.", charged=True)
            if self.accepted
            else refusal_record(record, secrets=self._secrets)
        )
        report = chunk_usage(chunk, self._service_tier)
        if report is not None and tells_of_use(report):
            self.accepted = True
            events.append(report)
        self.fail(failure)

    def _open(self, chunk: Chunk, events: list[Event]) -> None:
        if not self._opened:
            self._opened = True
            events.append(opened(chunk))

    def _count(self, index: int, *, empty: bool) -> None:
        if empty:
            self._empty += 1
            if self._empty > self._empty_max:
                raise MalformedAnswer("it goes on without saying anything")
            return
        self.pieces[index] += 1
        if self.pieces[index] > self.pieces_max:
            raise MalformedAnswer("a choice is longer than its bound")

    def _admit(self, delta: Delta) -> bool:
        """Whether a delta is to be passed on; a repeated end is not, a resurrection is a fault."""
        if self.finished[delta.choice]:
            if delta != Delta(delta.choice, finish=delta.finish):
                raise MalformedAnswer("a choice goes on after its end")
            return False
        if delta.finish is not None:
            self.finished[delta.choice] = True
        return True
