"""Defines the interface through which the services use a backend."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from tollkeeper.domain.inference import Batch, Call, Event
from tollkeeper.domain.metering import Meter


class ReplicaReport(msgspec.Struct, frozen=True, gc=False):
    """Describes the state of one replica (one address of a backend) as this process sees it. Other
    processes, perhaps of other versions, read these reports. So fields may only be added, each with a
    default."""

    backend: str
    url: str
    # "healthy", "failing", "ejected" or "probing"
    state: str
    # The number of seconds until an ejected or probing replica may be called again; otherwise None.
    retry_in_s: float | None = None
    # The reason why the last call failed. Empty after a successful call.
    last_failure: str = ""
    # The number of calls in flight, and of open connections.
    calls: int = 0
    connections: int = 0
    # The number of calls that wait for a connection.
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """Describes the state of a backend for the operator."""

    name: str
    ready: bool
    detail: str
    # url -> "healthy", "failing", "ejected" or "probing"
    replicas: dict[str, str]
    # One report for each replica of this backend. Empty for a combination of several backends.
    reports: tuple[ReplicaReport, ...] = ()


# Writes a piece of text to the client. The text belongs to the only choice of an answer, and is
# encoded as a JSON string. Returns False if the text cannot be written now. In this case the reader
# of the answer emits the same text as an event.
TextWriter: TypeAlias = Callable[[bytes], bool]
# The coroutine of a call to a backend.
Answering: TypeAlias = Coroutine[Any, Any, None]
# Writes text to the client, and counts text that was written.
TextFunctions: TypeAlias = tuple[TextWriter, Callable[[str], None]]


class AnswerReceiver(Protocol):
    """Receives the answer to one call. The backend sets the attributes."""

    # Whether the request of the current attempt was sent. Before the request is sent, the backend
    # cannot charge for the call.
    sent: bool
    # The replica that has begun to answer, which means that the backend has accepted the call. None
    # until then.
    replica: str | None
    # The backend of the current attempt. Only set if the model has several backends.
    backend: str | None

    @property
    def ends_by(self) -> float | None:
        """Returns the time by which the call has to end, for example because the client has
        disconnected; None if the call need not end. If it has to end, no further request is sent."""
        ...

    def take(self, batch: Batch) -> Awaitable[None]:
        """Receives the next events of the answer."""
        ...

    def text_functions(self) -> TextFunctions | None:
        """Returns functions to which the backend may pass further text directly. Called after the
        first events of a stream were received. Returns None if all text must come as events."""
        ...

    def set_prompts_sent(self, prompts: int, choices: int) -> None:
        """Sets the number of prompts that the call is charged for, and the number of completions that
        these prompts together ask for. Called if these numbers may differ from
        `Backend.prompts_sent` and `Call.choices`."""
        ...

    def set_parts(self, parts: Sequence[Meter]) -> None:
        """Sets the meters of the separate calls for one completion each that were sent and not
        refused. Called once such calls have begun to answer, when all of them have ended."""
        ...


class EventCollector:
    """Receives an answer, and stores its events."""

    sent = False
    replica: str | None = None
    backend: str | None = None

    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def ends_by(self) -> float | None:
        return None

    async def take(self, batch: Batch) -> None:
        self.events += batch

    def text_functions(self) -> TextFunctions | None:
        return None

    def set_prompts_sent(self, prompts: int, choices: int) -> None: ...

    def set_parts(self, parts: Sequence[Meter]) -> None: ...


class Backend(Protocol):
    """Represents a service that answers calls to its models."""

    name: str

    def answer(self, call: Call, receiver: AnswerReceiver, *, deadline: float) -> Answering:
        """Sends the call, and passes the answer to the receiver until it is complete: every choice has
        finished, and the backend has sent the end of its stream or a complete JSON body. If the
        coroutine is cancelled or the receiver raises an error, the call is stopped and its connection
        is freed.

        `deadline` is a time of the event loop's clock. It limits the time until the end of the
        answer.

        Raises only domain errors, and the errors of the receiver. Errors before the answer begins:
        InvalidRequest and OptionUnsupported (the backend's protocol cannot represent the call, so it
        was not sent), ProviderRejected (the backend answered 400 or 422), RateLimited (429),
        Unavailable (for example, all connections are in use, or the gateway's credential is not
        valid), DeadlineExceeded, BackendFailed (any other failure). After an incomplete answer, the
        error is BackendFailed in most cases. The attribute `charged` of the error is True if the
        backend may have run the call.
        """
        ...

    @property
    def counts_tokens(self) -> bool:
        """Tells whether `count_prompt_tokens` sends a request to a tokenizer of the backend."""
        ...

    @property
    def counts_media(self) -> bool:
        """Tells whether that tokenizer also counts images and other media, not only text."""
        ...

    def prompts_sent(self, call: Call) -> int:
        """Returns the number of times that the backend receives the prompt of the call: more than
        once if the gateway sends a separate call for each completion. The backend charges for each
        of these prompts."""
        ...

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        """Asks the backend's tokenizer for the number of prompt tokens. Returns None if the backend
        has no tokenizer, or if the request fails."""
        ...

    def health(self) -> BackendHealth: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...
