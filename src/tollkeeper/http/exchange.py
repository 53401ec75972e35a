"""What lies between the HTTP server and an application, such as the public API."""

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Protocol, TypeAlias

from tollkeeper.http.sse import StreamWriter

# `OPTIONS *`, about the whole server.
SERVER_WIDE = b"*"


# By lower-case name.
HeaderIndex: TypeAlias = dict[bytes, tuple[bytes, ...]]


class RequestHead:
    """Requests with the same line and headers may share one, even on different connections."""

    __slots__ = ("__weakref__", "context", "headers", "is_http10", "method", "path", "query")

    def __init__(
        self, method: str, path: bytes, query: bytes, headers: HeaderIndex, *, is_http10: bool
    ) -> None:
        self.method = method
        # As the client wrote it, still percent-encoded.
        self.path = path
        self.query = query
        # Without Content-Length, which may differ between requests that share the object.
        self.headers = headers
        self.is_http10 = is_http10
        # Set by the application at the first request with these headers.
        self.context: Any = None


class ClientDisconnected(Exception):
    """The request wasn't complete, so no answer is sent."""


class Exchange(StreamWriter, Protocol):
    """One request with its answer. The application answers with `answer`, in one write, or with
    `start`, `write` and `end`.

    Data after the end of the answer, or after the client has disconnected, is dropped. A stopping
    server cancels the request's task, unless the application has called `on_disconnect` and so ends
    the task itself.
    """

    @property
    def owner(self) -> Hashable:
        """The organization; None until the application has set it."""
        ...

    def recognise(self, owner: Hashable) -> None:
        """As soon as it's known. Waiting owners are served in turn; requests without one share a
        turn."""
        ...

    @property
    def head(self) -> RequestHead: ...

    @property
    def peer(self) -> str: ...

    @property
    def body(self) -> bytes | None:
        """None while a part hasn't arrived."""
        ...

    @property
    def body_bytes(self) -> int:
        """The declared or the received size, whichever is larger."""
        ...

    async def receive_body(self, grow_to: Callable[[int], None]) -> bytes:
        """Calls `grow_to` with the received size whenever data arrives, and passes on its errors.
        Also raises ClientDisconnected, BodyTimeout, and InvalidRequest for invalid HTTP."""
        ...

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """`headers` must include Content-Length, unless the status has no body."""
        ...

    def abandon(self) -> None:
        """Disconnects, because the answer can't be completed."""
        ...

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Calls back at once if the client has already disconnected, but never after the answer."""
        ...

    # Sends the error if the server stops before the answer is complete. It then disconnects.
    on_stop: Callable[[], None] | None


Work: TypeAlias = Coroutine[Any, Any, None]
# Answers at once and returns None, or returns a coroutine that the server runs in a task. All
# failures are sent as answers, so the server handles no exceptions of the application.
Application: TypeAlias = Callable[[Exchange], Work | None]
