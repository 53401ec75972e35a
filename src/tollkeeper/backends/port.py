"""Defines the interface through which the services use a backend."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias

import msgspec

from tollkeeper.domain.inference import Batch, Call


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
# Starts to relay pieces of an answer that contain only text, as soon as they arrive: to a writer, and
# to a function that counts the text.
TextRelay: TypeAlias = Callable[[TextWriter, Callable[[str], None]], None]


class Answer(msgspec.Struct, frozen=True):
    """Represents an answer that has begun, which means that the backend has accepted the call."""

    replica: str
    batches: AsyncIterator[Batch]
    # The backend that serves the call, if the model has several backends. Otherwise empty.
    backend: str = ""
    # The number of times that the backend receives the prompt. 0 means the result of
    # `Backend.prompts_sent`.
    prompts: int = 0
    # Returns the number of prompts that were sent so far and not refused. If the answer is
    # incomplete, only these prompts are charged. None if the call sends its prompt only once.
    prompts_begun: Callable[[], int] | None = None
    # None if every piece comes as an event.
    relay_text: TextRelay | None = None


class BackendCall(Protocol):
    """Represents one call to a backend as a context manager. Entering sends the call, and the answer
    is read inside the context."""

    @property
    def sent(self) -> bool:
        """Tells whether the request of the current attempt was sent. Before the request is sent, the
        backend cannot charge for the call."""
        ...

    async def __aenter__(self) -> Answer: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Backend(Protocol):
    """Represents a service that answers calls to its models."""

    name: str

    def open(self, call: Call, *, deadline: float) -> BackendCall:
        """Returns the context manager of the call. Entering it sends the call, and returns when the
        backend has accepted the call and begun to answer. Leaving it, even by an exception, stops
        the call and frees its connection.

        `deadline` is a time of the event loop's clock. It limits the time until the end of the
        answer.

        Entering raises only domain errors: InvalidRequest and OptionUnsupported (the backend's
        protocol cannot represent the call, so it was not sent), ProviderRejected (the backend
        answered 400 or 422), RateLimited (429), Unavailable (for example, all connections are in use,
        or the gateway's credential is not valid), DeadlineExceeded, BackendFailed (any other failure).
        The attribute `charged` of the error is True if the backend may have run the call.

        The iterator `Answer.batches` ends after a complete answer: every choice has finished, and
        the backend has sent the end of its stream or a complete JSON body. After an incomplete
        answer, the iterator raises an error, in most cases BackendFailed.
        """
        ...

    @property
    def counts_tokens(self) -> bool:
        """Tells whether `count_prompt_tokens` sends a request to a tokenizer of the backend."""
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
