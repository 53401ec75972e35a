"""What the HTTP server gives to an application: one request, and the means to answer it."""

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Protocol, TypeAlias

from tollkeeper.api.http.envelope import Headers
from tollkeeper.api.http.head import RequestHead
from tollkeeper.api.http.sse import StreamWriter

# The path of a request that is about the whole server: `OPTIONS *`.
SERVER_WIDE = b"*"


class ClientGone(Exception):
    """The caller left before its request was complete, so no answer is sent."""


class Exchange(StreamWriter, Protocol):
    """One request with its answer. The server calls the application once for each.

    The application answers with `answer`, which sends everything in one write, or with `start`,
    `write` and `end`. What is sent after the answer's end, or to a caller that has left, is
    dropped. The server does not cancel a request that waits with `on_leave`: such a request comes
    to its own end.
    """

    # For whom the request is, which the application sets as soon as it knows. The server lets owners
    # take turns. Of those that nobody knows, all have one together.
    owner: Hashable

    @property
    def head(self) -> RequestHead: ...

    @property
    def peer(self) -> str:
        """The address from which the request came."""
        ...

    @property
    def body(self) -> bytes | None:
        """The whole body; None while a part of it is still to come."""
        ...

    @property
    def body_bytes(self) -> int:
        """How many bytes of the body the caller has declared, or has sent so far."""
        ...

    async def receive_body(self, grow_to: Callable[[int], None]) -> bytes:
        """Waits for the rest of the body. `grow_to` is called with the number of bytes that have arrived,
        whenever some have. Raises what it raises, ClientGone, BodyTimeout for a client that sends too slowly,
        and InvalidRequest for bytes that are not HTTP."""
        ...

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a whole answer. The headers contain its length."""
        ...

    def abandon(self) -> None:
        """Ends an answer that cannot be completed: the connection is closed."""
        ...

    def on_leave(self, callback: Callable[[], None]) -> None:
        """Sets what is called if the caller leaves before the answer is complete. Calls it at once
        if the caller has left already."""
        ...

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Sets what is called if the server stops before the answer is complete. It sends what
        the caller is to know; the server closes the connection after it."""
        ...


# Answers one request. It sends every failure as an answer, so the server has none to handle.
Application: TypeAlias = Callable[[Exchange], Coroutine[Any, Any, None]]


class RefusesAtOnce(Protocol):
    @property
    def is_active(self) -> bool:
        """Whether it refuses anything at present."""
        ...

    def __call__(self, exchange: Exchange) -> bool:
        """Answers a request that the process has no room for, and returns True. Where it returns
        False, it has done nothing, and the application answers. It does not wait, so it needs no
        task."""
        ...
