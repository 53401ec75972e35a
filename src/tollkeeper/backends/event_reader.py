"""Defines the base classes of the answer readers: the state of an answer, its limits, and its
failures."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tollkeeper.backends.answer_json import MalformedAnswer, SplitCharacters, tells_of_use
from tollkeeper.backends.port import TextWriter
from tollkeeper.backends.refusals import refusal_record
from tollkeeper.backends.transport.framing import RecordParser
from tollkeeper.backends.wire import WholeAnswer
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import (
    EXACT_STOP_REASONS,
    Call,
    Delta,
    Event,
    Finish,
    FunctionCallPiece,
    Opened,
    ToolCallPiece,
    UsageReport,
)
from tollkeeper.domain.usage import ReportedUsage

# Some servers split the text of one token into two pieces, or sign it with a separate piece. More
# pieces exceed the limit.
_PIECES_PER_TOKEN_MAX = 2
# Additional pieces that are allowed beyond the limit: roles and ends.
_SLACK = 64
# The limit for all images of an answer together, in base64. A record, and an answer that is not a
# stream, have their own limits.
_IMAGE_CHARACTERS_MAX = 64 << 20
_NO_ARGUMENTS = "{}"


def pieces_max(output_tokens: int) -> int:
    """Returns the maximum number of pieces of a completion with this many tokens."""
    return _PIECES_PER_TOKEN_MAX * output_tokens + _SLACK


class StreamReader(ABC):
    """Implements `AnswerReader`. A protocol's subclass reads one record, and appends to
    `_events`."""

    def __init__(
        self, call: Call, *, secrets: tuple[str, ...] = (), events_per_token: int = 0
    ) -> None:
        """`events_per_token` is the number of records without content that may come with a
        token."""
        self._secrets = secrets
        # A server may report its progress in the prompt with empty records: at most one per token.
        self._empty_records_left = (
            call.model.context_length + events_per_token * call.output_tokens_max + _SLACK
        )
        self._image_room = _IMAGE_CHARACTERS_MAX
        self._split_characters = SplitCharacters()
        self._events: list[Event] = []
        self.accepted = False
        self.failing = False
        self.done = False
        self.failure: TollkeeperError | None = None

    def read(self, payloads: Iterable[bytes]) -> list[Event]:
        try:
            for payload in payloads:
                # Repeats `ended`, without a call for each record.
                if self.done or self.failure is not None:
                    break
                self._read_payload(self._split_characters.join(payload))
        except MalformedAnswer as error:
            malformed = f"The backend's stream is malformed: {error}."
            self.fail(BackendFailed(malformed, charged=True))
        events, self._events = self._events, []
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
        return None

    @abstractmethod
    def _read_payload(self, payload: bytes) -> None:
        """Reads one record. Raises MalformedAnswer."""

    def _take_room(self, images: tuple[str, ...]) -> None:
        """Raises MalformedAnswer if the answer has more images than allowed."""
        self._image_room -= sum(map(len, images))
        if self._image_room < 0:
            raise MalformedAnswer("its images are too large")

    def _count_empty_record(self) -> None:
        self._empty_records_left -= 1
        if self._empty_records_left < 0:
            raise MalformedAnswer("it has too many records without content")


class EventReader(StreamReader):
    """Reads the one answer of every protocol except chat, streamed or whole. A protocol maps its
    records to these steps: open, emit, call, report, finish and fail."""

    # Whether the reader drops further calls, because the protocol cannot request a single call.
    drops_further_calls = False

    def __init__(
        self, call: Call, *, secrets: tuple[str, ...] = (), events_per_token: int = 0
    ) -> None:
        super().__init__(call, secrets=secrets, events_per_token=events_per_token)
        self._pieces_left = pieces_max(call.output_tokens_max)
        # A client that sent `functions` reads `function_call`, but not `tool_calls`.
        self._legacy = call.prompt.has_legacy_functions_only
        self._single = self.drops_further_calls and (
            self._legacy or call.prompt.parallel_tool_calls is False
        )
        self._asks_for_searches = call.prompt.web_search is not None
        self._searches = 0
        self._call_count = 0
        self._opened = False
        self._finished = False
        self._has_emitted = False

    def whole_answer(self, events: list[Event]) -> WholeAnswer:
        """Returns the events of a body for `Wire.read_whole`. Raises a failure that came in place
        of an answer. A failure that came with output is charged, and is the answer's shortfall."""
        if self.failure is not None and not self.accepted:
            raise self.failure
        if self.failure is not None:
            self.failure.charged = True
        return WholeAnswer(events, self.failure)

    def _read_payload(self, payload: bytes) -> None:
        self._has_emitted = False
        self._read_record(payload)
        if not self._has_emitted:
            self._count_empty_record()

    @abstractmethod
    def _read_record(self, payload: bytes) -> None:
        """Reads one record of a stream. Raises MalformedAnswer."""

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _open(self, service_tier: str | None = None) -> None:
        if not self._opened:
            self._opened = True
            self._events.append(Opened(service_tier=service_tier))

    def _emit(self, delta: Delta) -> None:
        self._pieces_left -= 1
        if self._pieces_left < 0:
            raise MalformedAnswer("it is longer than its bound")
        self.accepted = self._has_emitted = True
        self._events.append(delta)

    def _emit_images(self, images: tuple[str, ...]) -> None:
        self._take_room(images)
        self._emit(Delta(0, images=images))

    def _count_call(self) -> int:
        """Counts a call, and returns its number among the answer's calls."""
        index = self._call_count
        self._call_count += 1
        if index and self._legacy and not self._single:
            raise MalformedAnswer("it calls two functions at once")
        return index

    def _emit_call(
        self,
        index: int,
        id_: str | None = None,
        name: str | None = None,
        arguments: str = "",
        *,
        is_custom: bool = False,
    ) -> None:
        """Emits a call or a piece of it."""
        if index and self._single:
            return
        if self._legacy:
            self._emit(Delta(0, function_call=FunctionCallPiece(name, arguments)))
        else:
            piece = ToolCallPiece(index, id_, name, arguments, is_custom)
            self._emit(Delta(0, tool_calls=(piece,)))

    def _report_search(self) -> None:
        """Reports a search at once, because the usage report comes at the end and may never
        come."""
        self._searches += 1
        self._events.append(UsageReport(ReportedUsage(web_searches=self._searches)))

    def _report(self, report: UsageReport | None, *, is_final: bool = True) -> None:
        """Emits a usage report, if there is one. A final one with usage means that the call is
        charged."""
        if report is not None:
            if is_final and tells_of_use(report):
                self.accepted = True
            self._events.append(report)

    def _finish(
        self, finish: str, reason: str | None = None, stop_sequence: str | None = None
    ) -> None:
        """Emits why the answer ended, also in the provider's own word if the Messages protocol has
        it too. Ignores a repeated end."""
        if not self._finished:
            self._finished = True
            if finish == Finish.TOOL_CALLS and self._legacy:
                finish = Finish.FUNCTION_CALL
            exact = reason if reason in EXACT_STOP_REASONS else None
            self._emit(Delta(0, finish=finish, stop_reason=exact, stop_sequence=stop_sequence))

    def _error_for(self, record: object) -> TollkeeperError:
        """Converts an error record: a failure after output, or a refusal before it."""
        if self.accepted:
            return BackendFailed("The backend failed while it was answering.", charged=True)
        return refusal_record(record, secrets=self._secrets)

    def _fail_by_model(self, reason: str) -> None:
        """Fails because the model wrote no valid answer. A client can provoke that with its tools,
        so the replica is not blamed."""
        message = f"The model's answer is not valid ({reason})."
        self.fail(BackendFailed(message, charged=True, blameless=True))


@dataclass(slots=True)
class OpenBlock:
    """Represents a block that has begun."""

    # Empty for a type that is not read: nothing of such a block is emitted.
    kind: str = ""
    # The number of a call among the answer's calls; None for other blocks.
    call_index: int | None = None
    # The arguments that came with the beginning of a call. Usually they come in pieces instead.
    arguments: str = ""
    has_arguments: bool = False
    reasoning: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)
    ended: bool = False


_Block = TypeVar("_Block", bound=OpenBlock)


class BlockReader(EventReader, Generic[_Block]):
    """Represents the base class for protocols whose answers consist of numbered blocks, each with a
    beginning, pieces and an end."""

    # One token can cause up to this many events: the beginnings, pieces and ends of its block and
    # of the message.
    _EVENTS_PER_TOKEN_MAX = 8

    def __init__(self, call: Call, *, secrets: tuple[str, ...] = ()) -> None:
        super().__init__(call, secrets=secrets, events_per_token=self._EVENTS_PER_TOKEN_MAX)
        self._blocks: dict[int, _Block] = {}

    def _require_open(self, block: _Block) -> _Block:
        if block.ended:
            raise MalformedAnswer("a block goes on after its end")
        return block

    def _emit_reasoning(self, block: _Block, text: str | None, signature: str | None) -> None:
        if text:
            block.reasoning.append(text)
            self._emit(Delta(0, reasoning=text))
        if signature:
            block.signature.append(signature)

    def _emit_arguments(self, block: _Block, arguments: str) -> None:
        if arguments and block.call_index is not None:
            block.has_arguments = True
            self._emit_call(block.call_index, arguments=arguments)

    def _end_block(self, index: int) -> None:
        block = self._blocks.get(index)
        if block is None or block.ended:
            return
        block.ended = True
        if block.call_index is not None and not block.has_arguments:
            self._emit_call(block.call_index, arguments=block.arguments or _NO_ARGUMENTS)
        if block.signature:
            sealed = self._seal("".join(block.reasoning), "".join(block.signature))
            # Signed reasoning whose text the provider does not reveal has an empty text.
            text = None if block.reasoning else ""
            self._emit(Delta(0, reasoning=text, sealed_reasoning=sealed))
        self._emit_end(block)

    @abstractmethod
    def _seal(self, reasoning: str, signature: str) -> str:
        """Encodes signed reasoning as one value that a client can store and send back."""

    @abstractmethod
    def _emit_end(self, block: _Block) -> None:
        """Emits data that a protocol knows only at the end of a block."""
