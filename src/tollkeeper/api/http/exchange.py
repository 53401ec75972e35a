"""What the HTTP server gives to an application: one request, and the means to answer it."""

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Protocol, TypeAlias

from tollkeeper.api.http.endpoint import HeaderIndex, HeadReading
from tollkeeper.api.http.sse import StreamWriter

# The path of a request that is about the whole server: `OPTIONS *`.
SERVER_WIDE = b"*"


class RequestHead:
    """Method, target and headers. Requests of one connection that have the same head share it."""

    __slots__ = ("headers", "is_http10", "method", "path", "query", "reading")

    def __init__(
        self, method: str, path: bytes, query: bytes, headers: HeaderIndex, *, is_http10: bool
    ) -> None:
        self.method = method
        # As the caller wrote it, without the query.
        self.path = path
        self.query = query
        # Without the length of the body, which may be another one for each request.
        self.headers = headers
        self.is_http10 = is_http10
        # Set by the application when it has found the endpoint and the key.
        self.reading: HeadReading | None = None


class ClientGone(Exception):
    """The caller left before its request was complete, so no answer is sent."""


class Exchange(StreamWriter, Protocol):
    """One request with its answer. The server calls the application once for each.

    The application answers with `answer`, which sends everything in one write, or with `start`,
    `write` and `end`. What is sent after the answer's end, or to a caller that has left, is
    dropped. The server does not cancel a request that waits with `on_leave`: such a request comes
    to its own end.
    """

    @property
    def owner(self) -> Hashable:
        """For whom the request is; None until the application has said so."""
        ...

    def recognise(self, owner: Hashable) -> None:
        """Says for whom the request is, as soon as the application knows. The server lets owners take
        turns. All requests without an owner share one turn."""
        ...

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

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """Sends a whole answer. The header lines contain its length."""
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


Work: TypeAlias = Coroutine[Any, Any, None]
# Returns the work that answers a request, which the server runs in a task, or None if the request is
# answered already. It sends every failure as an answer, so the server has none to handle.
Application: TypeAlias = Callable[[Exchange], Work | None]
