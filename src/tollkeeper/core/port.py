"""How the services use a backend."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from tollkeeper.core.inference import Batch, Call, Event
from tollkeeper.core.metering import Meter


class ReplicaReport(msgspec.Struct, frozen=True, gc=False):
    """As this process sees it. Others, perhaps of other versions, read it, so only add fields, with
    defaults."""

    backend: str
    url: str
    # "healthy", "failing", "ejected" or "probing"
    state: str
    # For an ejected or probing replica.
    retry_in_s: float | None = None
    # Empty after a success.
    last_failure: str = ""
    # In flight, and open connections.
    calls: int = 0
    connections: int = 0
    # For a connection.
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """For the operator."""

    name: str
    ready: bool
    detail: str
    # url -> "healthy", "failing", "ejected" or "probing"
    replicas: dict[str, str]
    # Empty for a combination of several backends.
    reports: tuple[ReplicaReport, ...] = ()


# Takes text of the only choice, as a JSON string. False if it can't be written now: the reader then
# emits it as an event.
TextWriter: TypeAlias = Callable[[bytes], bool]
Answering: TypeAlias = Coroutine[Any, Any, None]
# Write text to the client, and count it.
TextFunctions: TypeAlias = tuple[TextWriter, Callable[[str], None]]


class AnswerReceiver(Protocol):
    """The backend sets the attributes."""

    # The current attempt. Before that, the backend can't charge.
    sent: bool
    # None until it has begun to answer, which means the backend has accepted the call.
    replica: str | None
    # Of the current attempt. Only if the model has several.
    backend: str | None

    @property
    def ends_by(self) -> float | None:
        """For example because the client has disconnected: no further request is sent. None if it
        need not end."""
        ...

    def take(self, batch: Batch) -> Awaitable[None]: ...

    def text_functions(self) -> TextFunctions | None:
        """To pass on further text directly. Called after a stream's first events. None if all text
        must come as events."""
        ...

    def set_prompts_sent(self, prompts: int, choices: int) -> None:
        """How many prompts the call is charged for, and how many completions they ask for, if not
        `Backend.prompts_sent` and `Call.choices`."""
        ...

    def set_parts(self, parts: Sequence[Meter]) -> None:
        """Of separate calls for one completion each, sent and not refused. Called when all have
        ended."""
        ...


class EventCollector:
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
    name: str

    def answer(self, call: Call, receiver: AnswerReceiver, *, deadline: float) -> Answering:
        """Passes the answer to the receiver until every choice has finished and the backend has
        ended its stream or sent a whole JSON body, by `deadline` (event loop's clock). Cancellation
        or a receiver's error stops the call and frees its connection.

        Raises only domain errors, and the receiver's. Before the answer: InvalidRequest and
        OptionUnsupported (the protocol can't represent the call; not sent), ProviderRejected (400
        or 422), RateLimited (429), Unavailable (such as no connection or an invalid credential),
        DeadlineExceeded, or else BackendFailed, as for most incomplete answers. `charged` means the
        backend may have run the call.
        """
        ...

    @property
    def counts_tokens(self) -> bool:
        """With a request to a tokenizer."""
        ...

    @property
    def counts_media(self) -> bool:
        """Images and others, not only text."""
        ...

    def prompts_sent(self, call: Call) -> int:
        """More than one if each completion is a separate call. The backend charges for each."""
        ...

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        """None without a tokenizer, or if the request fails."""
        ...

    def health(self) -> BackendHealth: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...
