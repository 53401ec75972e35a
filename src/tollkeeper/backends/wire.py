"""Defines the interface of a wire: the implementation of one backend protocol, which encodes calls
and reads answers. `backends/routing.py`, which sends calls over HTTP, uses this interface."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from tollkeeper.backends.port import TextWriter
from tollkeeper.backends.transport.framing import Framing, RecordParser
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.domain.inference import Call, Event, UsageReport


class AnswerReader(Protocol):
    """Converts the records of one streamed answer to events, and checks that they follow the
    protocol."""

    # Whether content has arrived, which means that the backend has accepted the call.
    accepted: bool
    # Whether the backend has reported a failure. A usage report may still follow, within the idle
    # timeout.
    failing: bool
    # The error that says why the answer did not end properly. Its attribute `charged` is True, unless
    # the backend refused the call before running it.
    failure: TollkeeperError | None

    @property
    def ended(self) -> bool:
        """True also for an answer that has failed."""
        ...

    def read(self, payloads: Iterable[bytes]) -> list[Event]:
        """Returns the events of these records. If a record is malformed, sets `failure` and returns
        only the events before this record. Ignores records after a failure, or after the end of the
        answer."""
        ...

    def fail(self, failure: TollkeeperError) -> None:
        """Ends the answer with this failure, unless the answer has already ended."""
        ...

    def end_body(self) -> list[Event]:
        """Handles the end of the HTTP body, and returns the last events. In a protocol without an
        end record, the end of the body is the proper end of the answer. In other protocols it is a
        failure."""
        ...

    def open_relay(
        self, parser: RecordParser, write: TextWriter, count: Callable[[str], None]
    ) -> Callable[[bytes], int] | None:
        """Returns a function that relays the text of records without creating events, for
        `Connection.read`. The function passes each text to `write` and to `count`, which adds the
        text to the meter. Returns None if the protocol needs an event for every record."""
        ...


class WholeAnswer(msgspec.Struct, frozen=True):
    """Contains the events of an answer that was not streamed."""

    events: list[Event]
    # The error that says why the answer is incomplete. The error is raised after the events were delivered.
    shortfall: TollkeeperError | None = None


class Wire(Protocol):
    """Encodes calls and reads answers for one protocol. Does not use connections."""

    # The headers that the protocol adds to every request.
    headers: Mapping[str, str]
    # The format that splits a streamed answer into records.
    framing: Framing

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        """Returns the path relative to the base address of a backend."""
        ...

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        """Encodes the body of the request to the backend. `extra` are additional fields. Raises
        InvalidRequest or OptionUnsupported if the protocol cannot represent the call."""
        ...

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        """Reads an answer that was not streamed. Raises MalformedAnswer. If the body is an error in
        place of an answer, raises the error for this refusal; `secrets` are removed from its
        message. If the body has an error in addition to output or usage, the error becomes the
        answer's `shortfall`."""
        ...

    def read_usage(self, body: bytes) -> UsageReport | None:
        """Returns the usage in a body for which `read_whole` has raised MalformedAnswer; None if
        the body contains no usage. Never raises an error."""
        ...

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader: ...
