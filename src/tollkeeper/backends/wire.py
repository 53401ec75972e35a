"""Defines the interface between a protocol and the transport: encodes a call, and reads its
answer."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from tollkeeper.backends.port import TextWriter
from tollkeeper.backends.transport.framing import Framing, RecordParser
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.domain.inference import Call, Event, UsageReport


class AnswerReader(Protocol):
    """Reads the records of one streamed answer as events, and checks them against the protocol."""

    # Whether content has arrived: the backend has accepted the call.
    accepted: bool
    # Whether the backend has reported a failure. Its usage may still follow, within a short time.
    failing: bool
    # Why the answer did not end properly. It is charged, unless it is a refusal that says that the
    # call did not run.
    failure: TollkeeperError | None

    @property
    def ended(self) -> bool:
        """Tells whether the answer has ended, properly or not."""
        ...

    def read(self, payloads: Iterable[bytes]) -> list[Event]:
        """Returns the events of these records. If one of them is malformed, returns the events
        before it and sets `failure`. After a failure or the end, further records are ignored."""
        ...

    def fail(self, failure: TollkeeperError) -> None:
        """Ends the stream with this failure, unless it had already ended."""
        ...

    def end_body(self) -> list[Event]:
        """Handles the end of the answer's body. That is the proper end only in protocols without an
        end record, which may have last events; in others it is a failure."""
        ...

    def open_relay(
        self, parser: RecordParser, write: TextWriter, count: Callable[[str], None]
    ) -> Callable[[bytes], int] | None:
        """Returns a function that relays the text of records without creating events
        (`Connection.relay`); None if every record has to be read."""
        ...


class WholeAnswer(msgspec.Struct, frozen=True):
    """Contains an answer that arrived in one piece."""

    events: list[Event]
    # Why the answer is incomplete. It is raised after the received events.
    shortfall: TollkeeperError | None = None


class Wire(Protocol):
    """Implements one protocol. Knows no connection."""

    # Headers of every request in addition to the transport's own.
    headers: Mapping[str, str]
    # The format that splits a streamed answer into records.
    framing: Framing

    def path_for(self, model: Model, *, stream: bool) -> str:
        """Returns the path relative to the base address of a backend."""
        ...

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        """Encodes the body for the backend. Raises InvalidRequest and OptionUnsupported for fields
        that the protocol lacks."""
        ...

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        """Reads a whole answer. Raises MalformedAnswer, and a refusal that came in place of the
        answer. An error in addition to output or usage is the answer's shortfall."""
        ...

    def read_usage(self, body: bytes) -> UsageReport | None:
        """Returns the usage in an answer that `read_whole` found malformed, or None. Never raises:
        a body may be anything."""
        ...

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader: ...
