"""Defines the interface between the HTTP server and an application: one request, and the means to
answer it."""

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Protocol, TypeAlias

from tollkeeper.api.http.endpoint import HeaderIndex, HeadReading
from tollkeeper.api.http.sse import StreamWriter

# The path of a request about the whole server: `OPTIONS *`.
SERVER_WIDE = b"*"


class RequestHead:
    """Contains method, target and headers. Requests of one connection with the same headers share
    it."""

    __slots__ = ("headers", "is_http10", "method", "path", "query", "reading")

    def __init__(
        self, method: str, path: bytes, query: bytes, headers: HeaderIndex, *, is_http10: bool
    ) -> None:
        self.method = method
        # As the client wrote it, without the query.
        self.path = path
        self.query = query
        # Without the length of the body, which may differ between requests.
        self.headers = headers
        self.is_http10 = is_http10
        # Set by the application when it has found the endpoint and the key.
        self.reading: HeadReading | None = None


class ClientGone(Exception):
    """The client disconnected before its request was complete, so no answer is sent."""


class Exchange(StreamWriter, Protocol):
    """Represents one request with its answer. The server calls the application once for each.

    The application answers with `answer`, which sends everything in one write, or with `start`,
    `write` and `end`. Data after the answer's end, or for a disconnected client, is dropped. The
    server does not cancel a request that uses `on_leave`: such a request ends by itself.
    """

    @property
    def owner(self) -> Hashable:
        """Returns the owner of the request; None until the application has set it."""
        ...

    def recognise(self, owner: Hashable) -> None:
        """Sets the owner of the request, as soon as the application knows it. The server lets
        owners take turns. All requests without an owner share one turn."""
        ...

    @property
    def head(self) -> RequestHead: ...

    @property
    def peer(self) -> str:
        """Returns the address from which the request came."""
        ...

    @property
    def body(self) -> bytes | None:
        """Returns the whole body; None while a part of it is missing."""
        ...

    @property
    def body_bytes(self) -> int:
        """Returns the declared size of the body, or the size received so far."""
        ...

    async def receive_body(self, grow_to: Callable[[int], None]) -> bytes:
        """Waits for the rest of the body. Calls `grow_to` with the received size whenever data
        arrives, and raises its errors, ClientGone, BodyTimeout for a client that sends too slowly,
        and InvalidRequest for bytes that are not HTTP."""
        ...

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """Sends a whole answer. The header lines contain its length."""
        ...

    def abandon(self) -> None:
        """Ends an answer that cannot be completed: the connection is closed."""
        ...

    def on_leave(self, callback: Callable[[], None]) -> None:
        """Registers a callback for a disconnect before the answer is complete. Calls it at once if
        the client has already disconnected."""
        ...

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Registers a callback for a stop of the server before the answer is complete. It sends the
        notice to the client; the server closes the connection after it."""
        ...


Work: TypeAlias = Coroutine[Any, Any, None]
# Returns the work that answers a request, which the server runs in a task, or None if the request
# is already answered. It sends every failure as an answer, so the server has none to handle.
Application: TypeAlias = Callable[[Exchange], Work | None]
