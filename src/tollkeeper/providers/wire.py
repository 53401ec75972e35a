"""The interface of a wire, as `providers/routing.py` uses it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.inference import Call, Event, UsageReport
from tollkeeper.core.port import TextWriter
from tollkeeper.providers.transport.framing import Framing, RecordParser


class AnswerReader(Protocol):
    """Converts a stream's records to events, and checks the protocol."""

    # The backend has accepted the call, because content has arrived.
    accepted: bool
    # A failure was reported. Usage may still follow, within the idle timeout.
    failing: bool
    # Why it didn't end properly. `charged`, unless the backend refused the call before running
    # it.
    failure: TollkeeperError | None

    @property
    def ended(self) -> bool:
        """Or failed."""
        ...

    def read(self, payloads: Iterable[bytes]) -> list[Event]:
        """A malformed record sets `failure`, and only events before it are returned. Ignores
        records after a failure or the end."""
        ...

    def fail(self, failure: TollkeeperError) -> None:
        """Unless it has ended."""
        ...

    def end_body(self) -> list[Event]:
        """Of HTTP: the proper end without an end record in the protocol, otherwise a failure.
        Returns the last events."""
        ...

    def open_relay(
        self, parser: RecordParser, write: TextWriter, count: Callable[[str], None]
    ) -> Callable[[bytes], int] | None:
        """For `Connection.read`: passes text to `write` and `count` without events. None if the
        protocol needs an event for every record."""
        ...


class WholeAnswer(msgspec.Struct, frozen=True):
    """Not streamed."""

    events: list[Event]
    # Why the answer is incomplete. Raised after the events.
    shortfall: TollkeeperError | None = None


class Wire(Protocol):
    """Does no I/O."""

    # Added to every request.
    headers: Mapping[str, str]
    # Of a streamed answer.
    framing: Framing

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        """Relative to the base address."""
        ...

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        """`extra` are additional fields. Raises InvalidRequest or OptionUnsupported if the protocol
        can't represent the call."""
        ...

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        """Raises MalformedAnswer, or the refusal that came in place of an answer, whose message has
        no `secrets`. An error beside output or usage is the `shortfall`."""
        ...

    def read_usage(self, body: bytes) -> UsageReport | None:
        """After `read_whole` raised MalformedAnswer. None without usage. Never raises."""
        ...

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader: ...
