"""What a backend is to everything above it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tollkeeper.domain.inference import Batch, Call


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """What the operator sees of a backend."""

    name: str
    ready: bool
    detail: str
    # url -> "healthy", "ejected" or "probing"
    replicas: dict[str, str]


class Answer(msgspec.Struct, frozen=True):
    """An answer that has begun: the backend said yes, and the first batch is in hand or on its way."""

    replica: str
    batches: AsyncIterator[Batch]


class Backend(Protocol):
    """One service that can answer calls of its models."""

    name: str

    def open(self, call: Call, *, deadline: float) -> AbstractAsyncContextManager[Answer]:
        """Sends the call; entering returns once the backend has accepted it and said something.

        `deadline` is a time of the event loop's clock; it bounds the whole answer. Leaving the
        context, however it is left, stops the upstream call and frees its connection.

        Raises domain errors only: InvalidRequest and OptionUnsupported (nothing was sent, because
        the backend's protocol has no place for it), ProviderRejected (400, 422 upstream),
        RateLimited (429), BackendFailed (anything else), Unavailable (no healthy replica),
        DeadlineExceeded. `charged` on the error is true where the backend may have run the call.

        The batches end after the backend's own proper end: every choice finished, and `[DONE]`,
        the event that ends a response, or a complete JSON answer. Anything short of that raises
        from the iterator, BackendFailed as a rule.
        """
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
