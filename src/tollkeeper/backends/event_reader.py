"""The bases of the readers of answers: the state of a streamed answer, bounds, failures, and the
events that are read and not taken yet."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from tollkeeper.backends.answer_json import MalformedAnswer, SplitCharacters
from tollkeeper.backends.port import TextWriter
from tollkeeper.backends.transport.framing import RecordParser
from tollkeeper.backends.wire import WholeAnswer
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import Call, Delta, Event, UsageReport
from tollkeeper.domain.usage import ReportedUsage

# Some servers split the text of one token into two pieces, or sign it with a piece of its own. More
# than that exceeds the bound.
_PIECES_PER_TOKEN_MAX = 2
# Pieces beyond the bound that are no sign of a runaway: roles and ends.
_SLACK = 64
# All images of an answer together, in base64. A record, and an answer that is no stream, have bounds of
# their own.
_IMAGE_CHARACTERS_MAX = 64 << 20


def pieces_max(output_tokens: int) -> int:
    """The most pieces that a completion of so many tokens may have."""
    return _PIECES_PER_TOKEN_MAX * output_tokens + _SLACK


class StreamReader(ABC):
    """An `AnswerReader`. A protocol says how one record is read, and appends to `_events`."""

    def __init__(
        self, call: Call, *, secrets: tuple[str, ...] = (), events_per_token: int = 0
    ) -> None:
        """`events_per_token` is how many records without content may come with a token."""
        self._secrets = secrets
        # A server may tell with empty records how far it has read the prompt: one a token at most.
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
                # What `ended` says, without a call for each record.
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
        """Raises MalformedAnswer if the answer has more images than it has room for."""
        self._image_room -= sum(map(len, images))
        if self._image_room < 0:
            raise MalformedAnswer("its images are too large")

    def _count_empty_record(self) -> None:
        self._empty_records_left -= 1
        if self._empty_records_left < 0:
            raise MalformedAnswer("it has too many records without content")


class EventReader(StreamReader):
    """The base of every reader except that of chat: one completion, and an answer that comes at once
    is read by the same code as a streamed one."""

    def __init__(
        self, call: Call, *, secrets: tuple[str, ...] = (), events_per_token: int = 0
    ) -> None:
        super().__init__(call, secrets=secrets, events_per_token=events_per_token)
        self._pieces_left = pieces_max(call.output_tokens_max)
        # A caller that sent `functions` reads `function_call`, but not `tool_calls`.
        self._legacy = call.prompt.has_legacy_functions_only
        self._asks_for_searches = call.prompt.web_search is not None
        self._searches = 0

    def whole_answer(self, events: list[Event]) -> WholeAnswer:
        """What `Wire.read_whole` returns for the events of a body. Raises the failure that came in the
        answer's place; one that came beside output is charged, and is the answer's shortfall."""
        if self.failure is not None and not self.accepted:
            raise self.failure
        if self.failure is not None:
            self.failure.charged = True
        return WholeAnswer(events, self.failure)

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _emit(self, delta: Delta) -> None:
        self._pieces_left -= 1
        if self._pieces_left < 0:
            raise MalformedAnswer("it is longer than its bound")
        self.accepted = True
        self._events.append(delta)

    def _emit_images(self, images: tuple[str, ...]) -> None:
        self._take_room(images)
        self._emit(Delta(0, images=images))

    def _tell_of_search(self) -> None:
        """Tells of a search at once, because the report comes at the end and may never come."""
        self._searches += 1
        self._events.append(UsageReport(ReportedUsage(web_searches=self._searches)))
