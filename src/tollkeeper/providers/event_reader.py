"""Base classes of the answer readers, with an answer's state, size limits and failures. A record is
one message of a stream; a piece is one event with text, reasoning or part of a tool call."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from tollkeeper.core.errors import BackendFailed, TollkeeperError
from tollkeeper.core.inference import (
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
from tollkeeper.core.port import TextWriter
from tollkeeper.core.usage import ReportedUsage
from tollkeeper.providers.answer_json import (
    ImagesTooLarge,
    MalformedAnswer,
    SplitCharacters,
    error_record,
)
from tollkeeper.providers.refusals import refusal_record
from tollkeeper.providers.transport.framing import RecordParser
from tollkeeper.providers.usage_reports import usage_means_charge
from tollkeeper.providers.wire import WholeAnswer

# Some servers split a token's text in two, or send its signature as a second piece.
_PIECES_PER_TOKEN_MAX = 2
# More pieces or records, for example those that only begin or end a message.
_SLACK = 64
# Of all images in base64. A record and a whole body have their own limits.
_IMAGE_CHARACTERS_MAX = 64 << 20
_NO_ARGUMENTS = "{}"


def pieces_max(output_tokens: int) -> int:
    return _PIECES_PER_TOKEN_MAX * output_tokens + _SLACK


class StreamReader(ABC):
    """Each protocol's subclass reads a record and appends its events to `_events`."""

    def __init__(
        self, call: Call, *, secrets: tuple[str, ...] = (), empty_records_per_token: int = 0
    ) -> None:
        """`empty_records_per_token`: records without content that the backend may send per output
        token."""
        self._secrets = secrets
        # A server may report its progress in reading the prompt, at most once per token.
        self._empty_records_left = (
            call.model.context_length + empty_records_per_token * call.output_tokens_max + _SLACK
        )
        self._image_characters_left = _IMAGE_CHARACTERS_MAX
        self._split_characters = SplitCharacters()
        self._events: list[Event] = []
        # See `AnswerReader`.
        self.accepted = False
        self.failing = False
        self.done = False
        self.failure: TollkeeperError | None = None

    def read(self, payloads: Iterable[bytes]) -> list[Event]:
        try:
            for payload in payloads:
                # `ended`, written out to avoid a property call per record.
                if self.done or self.failure is not None:
                    break
                self._read_payload(self._split_characters.join(payload))
        except MalformedAnswer as error:
            malformed = f"The backend's stream is malformed: {error}."
            # Clients can request many images.
            may_be_client_fault = isinstance(error, ImagesTooLarge)
            self.fail(
                BackendFailed(malformed, charged=True, may_be_client_fault=may_be_client_fault)
            )
        events, self._events = self._events, []
        return events

    @property
    def ended(self) -> bool:
        return self.done or self.failure is not None

    def fail(self, failure: TollkeeperError) -> None:
        if not self.ended:
            self.failure = failure

    def end_body(self) -> list[Event]:
        ended = "The backend's stream ended before the answer was complete."
        failure = BackendFailed(ended, charged=True)
        failure.backend_ended_answer = True
        self.fail(failure)
        return []

    def open_relay(
        self, parser: RecordParser, write: TextWriter, count: Callable[[str], None]
    ) -> Callable[[bytes], int] | None:
        return None

    @abstractmethod
    def _read_payload(self, payload: bytes) -> None:
        """Appends to `_events`. Raises MalformedAnswer."""

    def _count_images(self, images: tuple[str, ...]) -> None:
        self._image_characters_left -= sum(map(len, images))
        if self._image_characters_left < 0:
            raise ImagesTooLarge("its images are too large")

    def _count_empty_record(self) -> None:
        self._empty_records_left -= 1
        if self._empty_records_left < 0:
            raise MalformedAnswer("it has too many records without content")


class EventReader(StreamReader):
    """For every protocol except chat: one choice, streamed or not. Subclasses call `_open`,
    `_emit`, `_emit_call`, `_report`, `_finish` or `fail`, as a record requires."""

    # Drops further tool calls if the client wants one, because the protocol's requests can't
    # forbid them.
    enforces_single_call = False

    def __init__(
        self, call: Call, *, secrets: tuple[str, ...] = (), empty_records_per_token: int = 0
    ) -> None:
        super().__init__(call, secrets=secrets, empty_records_per_token=empty_records_per_token)
        self._pieces_left = pieces_max(call.output_tokens_max)
        # Such a client reads `function_call`, not `tool_calls`.
        self._legacy = call.prompt.has_legacy_functions_only
        self._first_call_only = self.enforces_single_call and (
            self._legacy or call.prompt.parallel_tool_calls is False
        )
        self._asks_for_searches = call.prompt.web_search is not None
        self._searches = 0
        self._call_count = 0
        self._opened = False
        self._finished = False
        self._has_emitted = False

    @staticmethod
    @abstractmethod
    def usage_in(body: bytes) -> UsageReport | None:
        """See `Wire.read_usage`."""

    def whole_answer(self, body: bytes) -> WholeAnswer:
        """See `Wire.read_whole`. With output, a failed call is charged."""
        events = self.read_whole(body)
        if self.failure is not None and not self.accepted:
            raise self.failure
        if self.failure is not None:
            self.failure.charged = True
        return WholeAnswer(events, self.failure)

    def read_whole(self, body: bytes) -> list[Event]:
        self._read_body(body)
        return self._take_events()

    def fail(self, failure: TollkeeperError) -> None:
        self._accept_if_searched()
        super().fail(failure)

    def _read_payload(self, payload: bytes) -> None:
        self._has_emitted = False
        self._read_record(payload)
        if not self._has_emitted:
            self._count_empty_record()

    @abstractmethod
    def _read_body(self, body: bytes) -> None:
        """Not streamed. Raises MalformedAnswer."""

    @abstractmethod
    def _read_record(self, payload: bytes) -> None:
        """Raises MalformedAnswer."""

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
            raise MalformedAnswer("it is longer than the output limit allows")
        self.accepted = self._has_emitted = True
        self._events.append(delta)

    def _emit_images(self, images: tuple[str, ...]) -> None:
        self._count_images(images)
        self._emit(Delta(0, images=images))

    def _count_call(self) -> int:
        """Returns the call's index. Raises MalformedAnswer for a second one if the client can read
        only one and the reader doesn't drop it."""
        index = self._call_count
        self._call_count += 1
        if index and self._legacy and not self._first_call_only:
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
        if index and self._first_call_only:
            return
        if self._legacy:
            self._emit(Delta(0, function_call=FunctionCallPiece(name, arguments)))
        else:
            piece = ToolCallPiece(index, id_, name, arguments, is_custom)
            self._emit(Delta(0, tool_calls=(piece,)))

    def _report_search(self) -> None:
        """At once: the usage report counts searches too, but it comes last, or not at all."""
        self._searches += 1
        self._events.append(UsageReport(ReportedUsage(web_searches=self._searches)))

    def _accept_if_searched(self) -> None:
        """After a search, the backend has run the call and charges for it. Not set before a
        failure: the model may reason silently after a search, and the idle timeout would end the
        answer."""
        if self._searches:
            self.accepted = True

    def _report(self, report: UsageReport | None, *, is_final: bool = True) -> None:
        """A final report with usage shows that the call ran, so it's charged."""
        if report is not None:
            if is_final and usage_means_charge(report):
                self.accepted = True
            self._events.append(report)

    def _finish(
        self, finish: str, reason: str | None = None, stop_sequence: str | None = None
    ) -> None:
        """`finish` is chat's word. `reason` is the provider's, emitted too if the Messages protocol
        has it. Only the first time."""
        if not self._finished:
            self._finished = True
            if finish == Finish.TOOL_CALLS and self._legacy:
                finish = Finish.FUNCTION_CALL
            exact = reason if reason in EXACT_STOP_REASONS else None
            self._emit(Delta(0, finish=finish, stop_reason=exact, stop_sequence=stop_sequence))

    def _error_for(self, record: object) -> TollkeeperError:
        """After output or a search, a charged failure. Before, a refusal."""
        self._accept_if_searched()
        if self.accepted:
            return BackendFailed("The backend failed while it was answering.", charged=True)
        return refusal_record(record, secrets=self._secrets)

    def _fail_by_model(self, reason: str) -> None:
        """Not the replica's fault: clients can provoke invalid answers with their tool
        definitions."""
        message = f"The model's answer is not valid ({reason})."
        self.fail(BackendFailed(message, charged=True, may_be_client_fault=True))


@dataclass(slots=True)
class OpenBlock:
    # Of a Messages block, empty if unknown and so ignored. Converse has no types, so always
    # empty.
    kind: str = ""
    # Among the answer's tool calls.
    call_index: int | None = None
    # Came with the call's beginning. Most providers send them later, in pieces.
    arguments: str = ""
    has_arguments: bool = False
    reasoning: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)
    ended: bool = False


_Block = TypeVar("_Block", bound=OpenBlock)


class BlockReader(EventReader, Generic[_Block]):
    """For protocols with numbered blocks, each with a beginning, pieces and an end."""

    # Such as the beginning and end of a token's block and of the message.
    _EMPTY_RECORDS_PER_TOKEN_MAX = 8

    def __init__(self, call: Call, *, secrets: tuple[str, ...] = ()) -> None:
        super().__init__(
            call, secrets=secrets, empty_records_per_token=self._EMPTY_RECORDS_PER_TOKEN_MAX
        )
        self._blocks: dict[int, _Block] = {}

    def _read_blocks(self, blocks: Sequence[Any] | None, error: msgspec.Raw) -> Any | None:
        """Of an answer that isn't streamed. Returns its error."""
        record = error_record(error)
        if blocks is None and record is None:
            raise MalformedAnswer("it has no content")
        self._open()
        for index, block in enumerate(blocks or ()):
            self._begin_block(index, block)
            self._end_block(index)
        return record

    def _end(self) -> None:
        if not self._finished:
            raise MalformedAnswer("it ended before the answer was complete")
        self.done = True

    @abstractmethod
    def _begin_block(self, index: int, block: Any) -> None: ...

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
            # Reasoning may be signed without its text, which is then empty.
            text = None if block.reasoning else ""
            self._emit(Delta(0, reasoning=text, sealed_reasoning=sealed))
        self._emit_end(block)

    @abstractmethod
    def _seal(self, reasoning: str, signature: str) -> str:
        """As one value, which clients can store and send back."""

    @abstractmethod
    def _emit_end(self, block: _Block) -> None:
        """What's known only at the end."""
