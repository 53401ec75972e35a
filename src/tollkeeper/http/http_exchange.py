"""One request and its answer, on the server's side (see `http.exchange`)."""

import asyncio
import http
from collections.abc import Callable, Hashable
from email.utils import formatdate
from functools import lru_cache
from time import time
from typing import Protocol

import msgspec

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.http.exchange import ClientDisconnected, RequestHead

# Beyond this, the server stops reading until the application asks for the body.
_READ_AHEAD_BYTES = 64 << 10
# A larger one is written by itself: joining would copy it.
_JOINED_BODY_BYTES_MAX = 64 << 10
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Link(Protocol):
    """What a parser and exchanges need of a connection."""

    @property
    def peer(self) -> str: ...

    # The client is connected and reads fast enough, so data goes out at once.
    ready: bool
    # Of the last request; None: unknown.
    owner: Hashable

    @property
    def paused(self) -> bool:
        """The client reads so slowly that the application should wait."""
        ...

    async def resumed(self) -> None: ...

    def send(self, data: bytes) -> None: ...

    def write(self, data: bytes) -> None:
        """Faster than `send`, but only while `ready`."""
        ...

    def read_body(self) -> None:
        """From now on the body has to arrive fast enough, too."""
        ...

    def body_arrived(self) -> None: ...

    def pause_reading(self) -> None: ...

    def recognised(self, owner: Hashable) -> None:
        """Only if it differs from `owner`."""
        ...

    def request_begun(self, exchange: "HttpExchange") -> None:
        """Its body may still be arriving."""
        ...

    def send_last(self, exchange: "HttpExchange", last: bytes) -> None: ...

    def abandoned(self, exchange: "HttpExchange") -> None:
        """The answer is incomplete."""
        ...


class HttpExchange(msgspec.Struct, eq=False):
    _link: Link
    head: RequestHead
    owner: Hashable = None
    # Complete or abandoned.
    finished: bool = False
    wrote: bool = False
    keep_alive: bool = True
    # For HEAD.
    omits_body: bool = False
    # 0 if it's chunked, missing, or `parse_repeated` returned the whole request.
    content_length: int = 0
    # None while a part is missing.
    body: bytes | None = None
    # Bytes if it came in one read, otherwise a bytearray.
    _received: bytes | bytearray = b""
    _failure: TollkeeperError | None = None
    _disconnected: bool = False
    # Of `receive_body`: gets the size as it grows, and may reject the body. None if the application doesn't
    # wait.
    _grow_to: Callable[[int], None] | None = None
    # Of `_received`, at the last `is_too_slow`.
    _size_before: int = 0
    _waiter: asyncio.Future[None] | None = None
    # Of a streamed answer, from `start` until they're sent.
    _answer_headers: bytes | None = None
    _begun: bool = False
    _uses_chunks: bool = False
    # With the headers. Only chunks follow.
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
            # The client may still be sending this body, so the connection can't be used again.
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
        # HTTP/1.0 has none: closing the connection ends the answer.
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
            # The same as `HttpExchange.write` without calls, because a stream has many pieces.
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
        """After a disconnect, so the work needn't be cancelled."""
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
        return self._grow_to is not None and self.body is None

    def is_too_slow(self, bytes_min: int) -> bool:
        """Since the last call or, the first time, since the application asked for the body."""
        before, self._size_before = self._size_before, len(self._received)
        return self._size_before - before < bytes_min

    def fail_body(self, failure: TollkeeperError) -> None:
        """From `receive_body`; what has come is dropped."""
        self._failure = failure
        self._received = b""
        self.keep_alive = False
        self._wake()

    def handle_disconnect(self) -> None:
        if self._disconnected or self.finished:
            return
        self._disconnected = True
        self._wake()
        if self.disconnect_callback is not None:
            self.disconnect_callback()

    def stop(self) -> None:
        """The server stops. The application can tell the client in `on_stop`; after that, nothing is sent."""
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
    """Status line, date (the Unix second `now`), and `connection: close` unless `keep_alive`."""
    phrase, date = http.HTTPStatus(status).phrase, formatdate(now, usegmt=True)
    connection = "" if keep_alive else "connection: close\r\n"
    return f"HTTP/1.1 {status} {phrase}\r\ndate: {date}\r\n{connection}".encode()
