"""Defines the interface between the HTTP server and an application (the public API, for example).

An `Exchange` is one request together with the methods to answer it.
"""

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Protocol, TypeAlias

from tollkeeper.api.http.endpoint import HeaderContext, HeaderIndex
from tollkeeper.api.http.sse import StreamWriter

# The path of `OPTIONS *`, a request about the whole server.
SERVER_WIDE = b"*"


class RequestHead:
    """Contains the request line and the headers of a request: its method, path, query and headers.
    Requests with the same request line and headers may share one object, even on different connections.
    """

    __slots__ = ("__weakref__", "context", "headers", "is_http10", "method", "path", "query")

    def __init__(
        self, method: str, path: bytes, query: bytes, headers: HeaderIndex, *, is_http10: bool
    ) -> None:
        self.method = method
        # The path as the client wrote it, still percent-encoded.
        self.path = path
        self.query = query
        # All headers except Content-Length, which may differ between requests that share the object.
        self.headers = headers
        self.is_http10 = is_http10
        # The endpoint and the key. The application sets them at the first request with these headers.
        self.context: HeaderContext | None = None


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete, so no answer is sent."""


class Exchange(StreamWriter, Protocol):
    """Represents one request with its answer. The server calls the application once for each
    exchange.

    The application answers with `answer`, which sends the whole answer in one write, or with
    `start`, `write` and `end`. The server drops data that is written after the end of the answer or
    after the client has disconnected. If the server stops, it cancels the task of the request, unless
    the application has called `on_disconnect` and therefore ends the task itself.
    """

    @property
    def owner(self) -> Hashable:
        """Returns the owner of the request (the organization that the key belongs to), or None until
        the application has set it."""
        ...

    def recognise(self, owner: Hashable) -> None:
        """Sets the owner of the request, as soon as the application knows the owner. If many requests
        wait, the server serves their owners in turn. Requests without an owner count as requests of one
        common owner."""
        ...

    @property
    def head(self) -> RequestHead: ...

    @property
    def peer(self) -> str:
        """Returns the network address of the client."""
        ...

    @property
    def body(self) -> bytes | None:
        """Returns the whole body, or None while a part of the body has not arrived."""
        ...

    @property
    def body_bytes(self) -> int:
        """Returns the declared size of the body or the size received so far, whichever is larger."""
        ...

    async def receive_body(self, grow_to: Callable[[int], None]) -> bytes:
        """Waits for the rest of the body. Calls `grow_to` with the received size whenever data
        arrives. Raises the errors of `grow_to`, ClientDisconnected if the client disconnects,
        BodyTimeout if the client sends too slowly, and InvalidRequest if the received bytes are not
        valid HTTP."""
        ...

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """Sends a whole answer. `headers` must include Content-Length, except for a status without
        a body; `body` is then empty."""
        ...

    def abandon(self) -> None:
        """Closes the connection, because the answer cannot be completed."""
        ...

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Registers a callback that is called if the client disconnects before the answer is
        complete. If the client has already disconnected, calls the callback at once."""
        ...

    # Is called if the server stops before the answer is complete. The callback sends an error to the
    # client; then the server closes the connection.
    on_stop: Callable[[], None] | None


Work: TypeAlias = Coroutine[Any, Any, None]
# Either answers the request at once and returns None, or returns a coroutine that answers the request.
# The server runs the coroutine in a task. The application sends every failure as an answer, so the
# server handles no exceptions of the application.
Application: TypeAlias = Callable[[Exchange], Work | None]
