"""The interface of a backend, as the services use it."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias

import msgspec

from tollkeeper.domain.inference import Batch, Call


class ReplicaReport(msgspec.Struct, frozen=True, gc=False):
    """How this process sees one replica. It is written for other processes, perhaps of other
    versions, so fields may only be added, each with a default."""

    backend: str
    url: str
    # "healthy", "failing", "ejected" or "probing"
    state: str
    # How long it is not called; None if it is called.
    retry_in_s: float | None = None
    # Why the last call failed; empty after one that succeeded.
    last_failure: str = ""
    calls: int = 0
    connections: int = 0
    # Calls that wait for a connection.
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """The state of a backend, as the operator sees it."""

    name: str
    ready: bool
    detail: str
    # url -> "healthy", "failing", "ejected" or "probing"
    replicas: dict[str, str]
    # Of the backend's own replicas, not of those of other backends.
    reports: tuple[ReplicaReport, ...] = ()


# Writes a further piece of text of the only choice of an answer, given in JSON. Returns False where
# it cannot do so now; the same text then comes as an event.
TextWriter: TypeAlias = Callable[[bytes], bool]


class Answer(msgspec.Struct, frozen=True):
    """An answer that has begun: the backend has accepted the call."""

    replica: str
    batches: AsyncIterator[Batch]
    # The backend that serves the call, where the model has several; empty where it has one.
    backend: str = ""
    # How often that backend is sent the prompt; 0: as often as `prompts_sent` says.
    prompts: int = 0
    # How many of them were sent so far and not refused, where they are sent one after the other: an
    # answer that breaks off costs no more prompts than these.
    prompts_begun: Callable[[], int] | None = None
    # Given a writer, and a function that counts what was written: pieces that are nothing but text go
    # to them at the moment they arrive. None where every piece comes as an event.
    relay_text: Callable[[TextWriter, Callable[[str], None]], None] | None = None


class BackendCall(Protocol):
    """One call to a backend, as a context: it is sent and answered inside of it."""

    @property
    def sent(self) -> bool:
        """Whether the request has left and was not refused since. Before that nothing can be charged,
        whoever ends the call."""
        ...

    async def __aenter__(self) -> Answer: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Backend(Protocol):
    """One service that can answer calls of its models."""

    name: str

    def open(self, call: Call, *, deadline: float) -> BackendCall:
        """Sends the call. Entering returns when the backend has accepted it and begun to answer.

        `deadline` is a time of the event loop's clock; it bounds the whole answer. Leaving the
        context, also by an exception, stops the upstream call and frees its connection.

        Raises domain errors only: InvalidRequest and OptionUnsupported (nothing was sent, because
        the backend's protocol cannot carry the call), ProviderRejected (400, 422 upstream),
        RateLimited (429), BackendFailed (anything else), Unavailable (no healthy replica),
        DeadlineExceeded. `charged` on the error is true where the backend may have run the call.

        The iterator of batches ends after a complete answer: every choice has finished, and the
        backend has sent `[DONE]`, the event that ends a response, or a complete JSON body. After
        an incomplete answer the iterator raises, in most cases BackendFailed.
        """
        ...

    @property
    def counts_tokens(self) -> bool:
        """Whether `count_prompt_tokens` asks a tokenizer, which takes time of the backend."""
        ...

    def prompts_sent(self, call: Call) -> int:
        """How often the backend is sent the prompt for one call: more than once where completions
        are made by calls of their own. Each of them is charged."""
        ...

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        """The exact number of prompt tokens, or None where the backend has no tokenizer."""
        ...

    def health(self) -> BackendHealth: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...
