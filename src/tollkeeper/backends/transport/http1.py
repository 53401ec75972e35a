"""One HTTP/1.1 connection to a model server: a request goes out, its answer comes in, in bounds.

llhttp (httptools) does the framing. This file owns what a gateway must know exactly and general
clients blur: whether a request left at all, whether the answer's head came, and that leaving a
call closes its socket at that moment, also before the first byte of the answer.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools
import msgspec

HEAD_BYTES_MAX = 64 << 10
# Reading from the socket pauses above this much unread body, so a slow reader bounds memory.
_BUFFERED_BYTES_MAX = 256 << 10
# What may still come after the reader has seen all that it wants, before the socket is closed.
_DRAINED_BYTES_MAX = 64 << 10
_DRAIN_TIMEOUT_S = 1.0


class HttpFailure(Exception):
    """An exchange did not end properly."""


class ConnectFailed(HttpFailure):
    """No connection came about: nothing of the request has left."""


class ConnectionsExhausted(ConnectFailed):
    """As many connections as allowed are in use."""


class ExchangeBroken(HttpFailure):
    """The connection was lost, or what came was not HTTP."""


class DeadlinePassed(HttpFailure):
    """The call's deadline passed."""


class PeerSilent(HttpFailure):
    """The answer had begun and then stood still for too long."""


class ResponseHead(msgspec.Struct, frozen=True, gc=False):
    """Status and headers; names are lower case."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]

    def header(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None

    @property
    def has_no_length(self) -> bool:
        """Then the body ends with the connection."""
        return self.header(b"content-length") is None and self.header(b"transfer-encoding") is None


class Connection(asyncio.Protocol):
    """One socket, used by one exchange at a time."""

    def __init__(
        self,
        on_lost: "Callable[[Connection], None]",
        on_drained: "Callable[[Connection], None]",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._on_drained = on_drained
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = self._idle_s = self._progress_at = 0.0
        self._lost = self._busy = self._draining = False
        self._forget_exchange()

    def _forget_exchange(self) -> None:
        self._head: ResponseHead | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._progressed = False
        self._interim = False
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._complete = False
        self._reusable = False
        self._failure: HttpFailure | None = None

    # What an exchange calls.

    def send(self, request: bytes, *, deadline: float, idle_s: float) -> None:
        """Starts an exchange; `deadline` is a time of the event loop's clock."""
        assert not self._busy
        assert self._transport is not None
        self._forget_exchange()
        self._busy = True
        self._deadline = deadline
        self._idle_s = idle_s
        now = self._progress_at = self._loop.time()
        self._timer = self._loop.call_at(min(deadline, now + idle_s), self._check_time)
        self._transport.write(request)

    async def read_head(self) -> ResponseHead:
        while self._head is None:
            if self._failure is not None:
                raise self._failure
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """What has come of the body since the last read; empty at its end."""
        while not self._chunks:
            if self._complete:
                return b""
            if self._failure is not None:
                raise self._failure
            await self._wait()
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        self._buffered = 0
        if self._paused and self._transport is not None and not self._lost:
            self._paused = False
            self._transport.resume_reading()
        return body

    def mark_progress(self) -> None:
        """The answer got on. From the first time on, a peer that stands still is not waited for:
        before it, a full queue looks just like silence, and the deadline is the bound."""
        self._progress_at = self._loop.time()
        self._progressed = True

    def finish(self, *, drain: bool) -> bool:
        """Ends the exchange; true if the connection can carry another one now.

        With `drain` the reader has all that it wants, and what little is still to come may come:
        the connection then reports itself drained, or closes.
        """
        if self._complete and self._reusable and not self.closing and self._all_written():
            self._end_exchange()
            return True
        if drain and self._failure is None and not self._lost and not self._complete:
            self._drain()
        else:
            self.abort()
        return False

    def abort(self) -> None:
        self._end_exchange()
        if self._transport is not None:
            self._transport.abort()

    @property
    def closing(self) -> bool:
        """Closed, or about to be: the end has come but its turn in the event loop has not."""
        return self._lost or self._transport is None or self._transport.is_closing()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            # Nothing was asked: whatever this is, no later answer may be mixed up with it.
            self.abort()
            return
        self._feed(data)
        if self._head is None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._fail(ExchangeBroken("the answer's head is too large"))
        self._after_data()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._busy and not self._complete:
            if exc is None and self._head is not None and self._head.has_no_length:
                self._complete = True
            elif self._failure is None:
                self._failure = ExchangeBroken("the connection was closed")
        if self._draining:
            self._end_exchange()
        self._wake()
        self._on_lost(self)

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._complete:
            # A second answer to one question: this connection cannot be trusted any more.
            self._reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._complete:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        self._interim = status < 200
        if self._interim:
            return
        self._head = ResponseHead(status, tuple(headers))

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._buffered += len(body)
            if not self._draining:
                self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self._complete:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()

    # Inside.

    def _all_written(self) -> bool:
        """An answer may come before the whole question has left; what is left of it would be read
        as the next one."""
        return self._transport is not None and self._transport.get_write_buffer_size() == 0

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self._complete:
                self._reusable = False
            else:
                self._fail(ExchangeBroken("the answer is not HTTP"))

    def _after_data(self) -> None:
        if self._draining:
            if self._complete and self._reusable:
                self._end_exchange()
                self._on_drained(self)
            elif self._complete or self._buffered > _DRAINED_BYTES_MAX:
                self.abort()
            return
        if self._buffered > _BUFFERED_BYTES_MAX and not self._paused and not self._complete:
            assert self._transport is not None
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def _drain(self) -> None:
        self._draining = True
        self._chunks = []
        self._buffered = 0
        self._cancel_timer()
        self._timer = self._loop.call_later(_DRAIN_TIMEOUT_S, self.abort)
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _check_time(self) -> None:
        """One timer serves deadline and silence; it looks at the clock when it fires, so a read
        does not have to move it."""
        now = self._loop.time()
        silent_until = self._progress_at + self._idle_s
        if now >= self._deadline:
            self._fail(DeadlinePassed("the deadline passed"))
        elif self._progressed and self._waiter is not None and now >= silent_until:
            self._fail(PeerSilent("the backend fell silent"))
        else:
            if now >= silent_until:
                silent_until = now + self._idle_s
            self._timer = self._loop.call_at(min(self._deadline, silent_until), self._check_time)

    def _fail(self, failure: HttpFailure) -> None:
        self._cancel_timer()
        if self._failure is None:
            self._failure = failure
        if self._draining:
            self._end_exchange()
        self._wake()
        if self._transport is not None:
            self._transport.abort()

    def _end_exchange(self) -> None:
        self._busy = self._draining = False
        self._chunks = []
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait(self) -> None:
        assert self._waiter is None, "one reader at a time"
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
