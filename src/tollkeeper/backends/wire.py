"""What a protocol is to the transport: how a call is written, and how its answer is read."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from tollkeeper.backends.port import TextWriter
from tollkeeper.backends.transport.framing import Framing, RecordParser
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.domain.inference import Call, Event, UsageReport


class AnswerReader(Protocol):
    """Reads the records of one streamed answer as events, and holds it to its protocol."""

    # Something of substance has come: the backend has accepted the call.
    accepted: bool
    # The backend has reported a failure. Its usage may still follow, within a short time.
    failing: bool
    # Why the end of the answer is not a proper one. It is charged, unless it is a refusal that says
    # that the call did not run.
    failure: TollkeeperError | None

    @property
    def ended(self) -> bool:
        """The answer has come to its end, proper or not."""
        ...

    def read(self, payloads: Iterable[bytes]) -> list[Event]:
        """The events of these records. Should one of them be wrong, the events before it are
        returned and `failure` is set. After a failure or the end, further records are ignored."""
        ...

    def fail(self, failure: TollkeeperError) -> None:
        """The stream is over, and this is why, unless it had ended already."""
        ...

    def end_body(self) -> list[Event]:
        """The body of the answer is complete. That is the proper end of an answer only in protocols
        without a record for it, and may have last events there; in others it is a failure."""
        ...

    def open_relay(
        self, parser: RecordParser, write: TextWriter, count: Callable[[str], None]
    ) -> Callable[[bytes], int] | None:
        """What passes the text of records on without making events of them (`Connection.relay`);
        None where every record has to be read."""
        ...


class WholeAnswer(msgspec.Struct, frozen=True):
    """An answer that came at once."""

    events: list[Event]
    # Why the answer is incomplete. It is raised after the events that did come.
    shortfall: TollkeeperError | None = None


class Wire(Protocol):
    """One protocol. Knows no connection."""

    # Headers of every request beside the transport's own.
    headers: Mapping[str, str]
    # How a streamed answer is cut into records.
    framing: Framing

    def path_for(self, model: Model, *, stream: bool) -> str:
        """Relative to the base address of a backend."""
        ...

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        """The body for the backend. Raises InvalidRequest and OptionUnsupported for what the
        protocol cannot carry."""
        ...

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        """Raises MalformedAnswer, and a refusal where there is one in the answer's place. An error
        beside output or usage is the answer's shortfall."""
        ...

    def read_usage(self, body: bytes) -> UsageReport | None:
        """The usage in an answer that `read_whole` found malformed; None where there is none. Never
        raises: a body may be anything."""
        ...

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader: ...
