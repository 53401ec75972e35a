"""Implements the HTTP server's side of one request and its answer (see `api.http.exchange`)."""

import asyncio
import http
from collections.abc import Callable, Hashable
from email.utils import formatdate
from functools import lru_cache
from time import time
from typing import Protocol

import msgspec

from tollkeeper.api.http.exchange import ClientDisconnected, RequestHead
from tollkeeper.domain.errors import TollkeeperError

# If more of a body than this has arrived, the server stops reading until the application asks for the
# body.
_READ_AHEAD_BYTES = 64 << 10
# A larger answer body is sent in a separate write, because joining it with its headers would copy it.
_JOINED_BODY_BYTES_MAX = 64 << 10
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Link(Protocol):
    """Defines the methods of a connection that its parser and its exchanges use."""

    @property
    def peer(self) -> str: ...

    # True if written data is sent immediately: the client is connected and reads fast enough.
    ready: bool
    # The owner (usually the organization) of the last request; None if unknown.
    owner: Hashable

    @property
    def paused(self) -> bool:
        """Tells whether the client reads so slowly that the application should wait."""
        ...

    async def resumed(self) -> None:
        """Waits while `paused` is True."""
        ...

    def send(self, data: bytes) -> None: ...

    def write(self, data: bytes) -> None:
        """Sends like `send`, but faster. May only be called while `ready` is True."""
        ...

    def read_body(self) -> None:
        """Resumes reading, and checks from now on that the body arrives fast enough."""
        ...

    def body_arrived(self) -> None:
        """Handles the end of a body."""
        ...

    def pause_reading(self) -> None: ...

    def recognised(self, owner: Hashable) -> None:
        """Registers the owner of the client's key. Called only if this owner differs from
        the attribute `owner`, the owner of the previous request."""
        ...

    def request_begun(self, exchange: "HttpExchange") -> None:
        """Handles a request whose headers are complete. Its body may still be arriving."""
        ...

    def send_last(self, exchange: "HttpExchange", last: bytes) -> None:
        """Sends the last piece of an answer, and handles the end of the answer."""
        ...

    def abandoned(self, exchange: "HttpExchange") -> None:
        """Handles the end of an incomplete answer."""
        ...


class HttpExchange(msgspec.Struct, eq=False):
    """Holds one request and its answer. The parser adds each part of the body when it has arrived."""

    _link: Link
    head: RequestHead
    owner: Hashable = None
    # True after the answer is complete or abandoned.
    finished: bool = False
    # True after a piece of a streamed answer was written.
    wrote: bool = False
    # False if the connection is closed after the answer.
    keep_alive: bool = True
    # True if the answer has no body, because the method is HEAD.
    omits_body: bool = False
    # The declared size of the body. 0 if the body is chunked, if there is none, or if `parse_repeated`
    # returned the complete request.
    content_length: int = 0
    # The complete body; None while a part of it is missing.
    body: bytes | None = None
    # The part of the body that has arrived so far: bytes if it came in one read, a bytearray otherwise.
    _received: bytes | bytearray = b""
    _failure: TollkeeperError | None = None
    _disconnected: bool = False
    # The callback of `receive_body`: it is called with the received size whenever data arrives, and may
    # reject the body. None if the application does not wait for the body.
    _grow_to: Callable[[int], None] | None = None
    # The size of `_received` at the last call of `is_too_slow`.
    _size_before: int = 0
    _waiter: asyncio.Future[None] | None = None
    # The encoded status line and headers of a streamed answer; None before `start` and after they are sent.
    _answer_headers: bytes | None = None
    # True after `start`.
    _begun: bool = False
    _uses_chunks: bool = False
    # True after the headers were sent together with the first chunk. Only chunks follow.
    _has_sent_chunk: bool = False
    disconnect_callback: Callable[[], None] | None = None
    on_stop: Callable[[], None] | None = None

    # Called by the application.

    def recognise(self, owner: Hashable) -> None:
        self.owner = owner
        if owner != self._link.owner:
            self._link.recognised(owner)

    @property
    def peer(self) -> str:
        return self._link.peer

    @property
    def body_bytes(self) -> int:
        return max(self.content_length, len(self.body or self._received))

    async def receive_body(self, grow_to: Callable[[int], None]) -> bytes:
        grow_to(len(self._received))
        self._grow_to = grow_to
        self._size_before = len(self._received)
        if not self._received and self.body is None and self._expects_continue():
            self._link.send(_CONTINUE)
        self._link.read_body()
        try:
            while self._failure is None and self.body is None and not self._disconnected:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        finally:
            self._waiter = self._grow_to = None
        if self._failure is not None:
            raise self._failure
        if self.body is None:
            raise ClientDisconnected
        return self.body

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        if self.finished or self._begun:
            return
        self.finished = True
        if self.body is None:
            # The client may still be sending this request's body, so the connection cannot serve another
            # request.
            self.keep_alive = False
            self._received = b""
        if self.omits_body:
            body = b""
        lines = first_lines(status, self.keep_alive, int(time()))
        if len(body) <= _JOINED_BODY_BYTES_MAX:
            self._link.send_last(self, b"%b%b\r\n%b" % (lines, headers, body))
        else:
            self._link.send(b"%b%b\r\n" % (lines, headers))
            self._link.send_last(self, body)

    @property
    def paused(self) -> bool:
        return self._link.paused

    async def resumed(self) -> None:
        await self._link.resumed()

    def start(self, status: int, headers: bytes) -> None:
        assert not self._begun, "an answer starts once"
        self._begun = True
        # HTTP/1.0 has no chunks. There, the client recognises the end of the answer by the close of the
        # connection.
        self._uses_chunks = not self.head.is_http10
        if self.body is None or not self._uses_chunks:
            self.keep_alive = False
        if self._uses_chunks:
            headers += b"transfer-encoding: chunked\r\n"
        lines = first_lines(status, self.keep_alive, int(time()))
        self._answer_headers = b"%b%b\r\n" % (lines, headers)

    def write(self, piece: bytes) -> None:
        if self.finished or not piece:
            return
        self.wrote = True
        if self._has_sent_chunk:
            self._link.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            self._link.send(self._framed(piece))

    def piece_writer(self, before: bytes, after: bytes) -> Callable[[bytes], bool] | None:
        if not self._has_sent_chunk:
            return None
        link, fixed_size = self._link, len(before) + len(after)

        def write(middle: bytes) -> bool:
            # Does the same as `HttpExchange.write`, without further function calls, because a stream has
            # many pieces.
            if self.finished or not link.ready:
                return False
            self.wrote = True
            link.write(b"%x\r\n%b%b%b\r\n" % (fixed_size + len(middle), before, middle, after))
            return True

        return write

    def end(self, piece: bytes) -> None:
        if self.finished:
            return
        self.finished = True
        last = self._framed(piece) if piece else self._take_answer_headers()
        if self._uses_chunks and not self.omits_body:
            last += b"0\r\n\r\n"
        self._link.send_last(self, last)

    def abandon(self) -> None:
        if not self.finished:
            self.finished = True
            self._link.abandoned(self)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self.disconnect_callback = callback
        if self._disconnected:
            callback()

    # Called by the connection and the server.

    @property
    def ends_by_itself(self) -> bool:
        """Tells whether the application ends its work by itself after a disconnect, so that the
        work need not be cancelled."""
        return self.disconnect_callback is not None

    def add_piece(self, piece: bytes) -> None:
        if self.finished or self._failure is not None:
            return  # the application needs no more of the body
        if not self._received:
            self._received = piece
        elif isinstance(self._received, bytes):
            self._received = bytearray().join((self._received, piece))
        else:
            self._received += piece
        if self._grow_to is not None:
            try:
                self._grow_to(len(self._received))
            except TollkeeperError as error:
                self.fail_body(error)
        elif len(self._received) > _READ_AHEAD_BYTES:
            self._link.pause_reading()

    def complete_body(self) -> None:
        self.body, self._received = bytes(self._received), b""
        self._wake()
        self._link.body_arrived()

    @property
    def waits_for_body(self) -> bool:
        """Tells whether the application waits until the client has sent the whole body."""
        return self._grow_to is not None and self.body is None

    def is_too_slow(self, bytes_min: int) -> bool:
        """Tells whether less than `bytes_min` of the body has arrived since the last call. The first
        call counts from when the application asked for the body."""
        before, self._size_before = self._size_before, len(self._received)
        return self._size_before - before < bytes_min

    def fail_body(self, failure: TollkeeperError) -> None:
        """Makes `receive_body` raise `failure`, and drops the received part of the body."""
        self._failure = failure
        self._received = b""
        self.keep_alive = False
        self._wake()

    def handle_disconnect(self) -> None:
        """Handles the loss of the connection."""
        if self._disconnected or self.finished:
            return
        self._disconnected = True
        self._wake()
        if self.disconnect_callback is not None:
            self.disconnect_callback()

    def stop(self) -> None:
        """Ends the exchange because the server stops. The application can notify the client in its `on_stop`
        callback; after that, nothing more is sent."""
        self.keep_alive = False
        if not self.finished and self.on_stop is not None:
            self.on_stop()
        self.abandon()

    # Private helpers.

    def _expects_continue(self) -> bool:
        expects = self.head.headers.get(b"expect")
        if expects is None or self.head.is_http10:
            return False
        return expects[0].lower() == b"100-continue"

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _framed(self, piece: bytes) -> bytes:
        head = self._take_answer_headers()
        if self.omits_body:
            return head
        if not self._uses_chunks:
            return head + piece
        self._has_sent_chunk = True
        return b"%b%x\r\n%b\r\n" % (head, len(piece), piece)

    def _take_answer_headers(self) -> bytes:
        head, self._answer_headers = self._answer_headers, None
        return head or b""


# Answers in the same second share the lines.
@lru_cache(maxsize=16)
def first_lines(status: int, keep_alive: bool, now: int) -> bytes:
    """Encodes the first lines of an answer: the status line, the date in the Unix second `now`, and
    `connection: close` if `keep_alive` is False."""
    phrase, date = http.HTTPStatus(status).phrase, formatdate(now, usegmt=True)
    connection = "" if keep_alive else "connection: close\r\n"
    return f"HTTP/1.1 {status} {phrase}\r\ndate: {date}\r\n{connection}".encode()
