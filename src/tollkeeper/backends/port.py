"""Defines the interface of a backend for the services."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias

import msgspec

from tollkeeper.domain.inference import Batch, Call


class ReplicaReport(msgspec.Struct, frozen=True, gc=False):
    """Reports how this process sees one replica. Other processes, perhaps of other versions, read
    it, so fields may only be added, each with a default."""

    backend: str
    url: str
    # "healthy", "failing", "ejected" or "probing"
    state: str
    # How long it is not called; None if it is called.
    retry_in_s: float | None = None
    # Why the last call failed; empty after a successful one.
    last_failure: str = ""
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
    # Reports of the backend's own replicas, not of those of other backends.
    reports: tuple[ReplicaReport, ...] = ()


# Writes another piece of text of an answer's only choice, given in JSON. Returns False if it cannot
# do so now; the same text then comes as an event.
TextWriter: TypeAlias = Callable[[bytes], bool]


class Answer(msgspec.Struct, frozen=True):
    """Represents an answer that has begun: the backend has accepted the call."""

    replica: str
    batches: AsyncIterator[Batch]
    # The backend that serves the call if the model has several; otherwise empty.
    backend: str = ""
    # How often that backend receives the prompt; 0 means the result of `prompts_sent`.
    prompts: int = 0
    # Returns how many of them were sent so far and not refused, if they are sent one after the
    # other: an incomplete answer costs no more prompts than these.
    prompts_begun: Callable[[], int] | None = None
    # Relays pieces that contain only text to a writer, and to a function that counts the text, as
    # soon as they arrive. None if every piece comes as an event.
    relay_text: Callable[[TextWriter, Callable[[str], None]], None] | None = None


class BackendCall(Protocol):
    """Represents one call to a backend as a context: it is sent and answered inside."""

    @property
    def sent(self) -> bool:
        """Tells whether the request has left and was not refused since. Before that nothing can be
        charged, however the call ends."""
        ...

    async def __aenter__(self) -> Answer: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Backend(Protocol):
    """Represents one service that can answer calls to its models."""

    name: str

    def open(self, call: Call, *, deadline: float) -> BackendCall:
        """Sends the call. Entering returns when the backend has accepted it and begun to answer.

        `deadline` is a time of the event loop's clock; it limits the whole answer. Leaving the
        context, even by an exception, stops the upstream call and frees its connection.

        Raises domain errors only: InvalidRequest and OptionUnsupported (nothing was sent, because
        the backend's protocol cannot represent the call), ProviderRejected (400, 422 upstream),
        RateLimited (429), BackendFailed (anything else), Unavailable (no healthy replica),
        DeadlineExceeded. `charged` on the error is True if the backend may have run the call.

        The iterator of batches ends after a complete answer: every choice has finished, and the
        backend has sent `[DONE]`, the event that ends a response, or a complete JSON body. After an
        incomplete answer the iterator raises, in most cases BackendFailed.
        """
        ...

    @property
    def counts_tokens(self) -> bool:
        """Tells whether `count_prompt_tokens` asks a tokenizer, which takes the backend's time."""
        ...

    def prompts_sent(self, call: Call) -> int:
        """Returns how often the backend receives the prompt for one call: more than once if each
        completion is a separate call. Each of them is charged."""
        ...

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        """Returns the exact number of prompt tokens, or None if the backend has no tokenizer."""
        ...

    def health(self) -> BackendHealth: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...
