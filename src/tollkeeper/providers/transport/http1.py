"""Implements one HTTP/1.1 connection to a model server, with limits on the size and duration of
every answer.

The parser llhttp (package httptools) splits the bytes into headers and body. This module does not
use a general HTTP client, because the gateway has three needs that such clients do not meet:

- to know whether any byte of the request was sent
- to know whether the headers of the answer arrived
- to close the socket as soon as the gateway's client disconnects, even before the answer begins
"""

import asyncio
import ssl
from collections.abc import Callable, Hashable
from math import inf
from operator import methodcaller
from typing import cast

import httptools

# The maximum size of an answer's headers. Also the limit for `Connection._overhead_bytes`.
HEAD_BYTES_MAX = 64 << 10
# A request body that is larger than this is sent in pieces of this size.
_PIECE_BYTES = 64 << 10
# The connection stops reading a stream from the socket while more unread bytes than this are
# buffered. Otherwise a slow reader of the stream could fill the memory.
_BUFFERED_BYTES_MAX = 64 << 10
# After the last record of a stream, the connection reads the remaining bytes of the answer, so that
# the connection can be reused. If more than this many bytes or seconds are needed, the socket is
# closed instead.
_DRAINED_BYTES_MAX = 64 << 10
_DRAIN_TIMEOUT_S = 1.0
# If received data ends with these bytes, and they end an HTTP chunk, the chunk ends with a whole
# server-sent event.
_CHUNK_END = b"\n\n\r\n"
# Negative values of `Connection._overhead_bytes`: the last part of a read is the end of the headers or a
# part of the body (`_CONTENT`), or it completes a chunk of the body (`_CHUNK_COMPLETE`).
_CONTENT, _CHUNK_COMPLETE = -1, -2
_unwritten_bytes = methodcaller("get_write_buffer_size")


class HttpFailure(Exception):
    """An exchange (one request and its answer) did not end properly."""


class ConnectFailed(HttpFailure):
    """No connection was opened, so no byte of the request was sent."""


class ConnectionsExhausted(ConnectFailed):
    """All connections that the pool may open are in use."""


class ExchangeBroken(HttpFailure):
    """The connection was lost, or the answer is not valid HTTP."""


class DeadlinePassed(HttpFailure):
    """The call's deadline passed."""


class AnswerTooLarge(HttpFailure):
    """The body of the answer is larger than the argument `bytes_max` of `read_whole`."""


class PeerSilent(HttpFailure):
    """The answer had begun, but then no data came for longer than the idle timeout."""


class Connection(asyncio.Protocol):
    """Represents one socket, used by one exchange at a time."""

    # `connection_made` sets the transport, and `start_tls` replaces it by one that encrypts.
    transport: asyncio.Transport
    # The transport. With TLS also the transport below TLS, because only that transport knows how many
    # encrypted bytes are not yet written to the socket.
    _transports: tuple[asyncio.Transport, ...]
    # `send` and `_next_data` set it. It is done when the headers have arrived (see `send`), when data has
    # arrived for the read that waits, or when the exchange has failed.
    _waiter: asyncio.Future[None]
    # Called by the parser, for each header: stores the header in `_received_headers`. Not a method of this
    # class, because an answer may have many headers, and a method would take several times as long.
    on_header: Callable[[bytes, bytes], bytes]

    def __init__(
        self,
        on_lost: "Callable[[Connection], None]",
        on_drained: "Callable[[Connection], None]",
        idle_s: float,
    ) -> None:
        """`idle_s` is the idle timeout of every exchange, see `mark_progress`."""
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._on_drained = on_drained
        self._idle_s = idle_s
        # The headers and trailers of the current answer, by name as received. Of a repeated header, only
        # the first value is stored.
        self._received_headers: dict[bytes, bytes] = {}
        self.on_header = self._received_headers.setdefault
        self._parser = httptools.HttpResponseParser(self)
        # The timer for both the deadline and the idle timeout (see `_check_time`), and the time at
        # which it fires; infinite if there is no timer.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._lost = False
        # Whether the event loop asked to stop writing, because the server reads too slowly.
        self._writing_paused = False
        # The pool sets the organization whose call uses the connection.
        self.organization: Hashable = None
        # The time (of the event loop's clock) at which the last exchange ended.
        self.idle_since = 0.0
        # All attributes below are the state of the current exchange.
        self._deadline = 0.0
        # The part of the request body that is not yet written.
        self._unsent: memoryview | None = None
        # The status of the answer; 0 until its headers have arrived.
        self.status = 0
        # The headers by lower-case name, after they have arrived. Trailers are not included.
        self.headers: dict[bytes, bytes] = {}
        # The number of bytes since the start of the exchange or the last read with a part of the body or
        # with the end of the headers. While the parser runs, `_CONTENT` or `_CHUNK_COMPLETE` if the
        # current read has such a part.
        self._overhead_bytes = 0
        # The time of the last call of `mark_progress`; infinite before the first call.
        self._progress_at = inf
        # The part of the body that has arrived and is not yet read: bytes if it is one piece, a
        # bytearray otherwise.
        self._body: bytes | bytearray = b""
        # Reading from the socket is paused while more unread bytes of the body than this are buffered.
        self._buffered_max = _BUFFERED_BYTES_MAX
        # Whether reading from the socket is paused.
        self._paused = False
        # None until the whole answer has arrived. Then: whether another exchange can use the connection.
        self._reusable: bool | None = True
        self._failure: HttpFailure | None = None
        # The function to which the read that waits passes received data (see `read`). It may stay set
        # after the wait.
        self._relay: Callable[[bytes], int] | None = None
        # Whether the next data from the socket begins with an HTTP chunk.
        self._at_chunk_start = False
        # Limits how long the rest of an answer is read. None if the connection does not drain.
        self._drain_timer: asyncio.TimerHandle | None = None

    # Called by the owner of the exchange.

    @property
    def is_ending(self) -> bool:
        """Tells whether no call uses the connection, because it drains or closes."""
        return self._drain_timer is not None or self.transport.is_closing()

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Encrypts the new connection and verifies that the peer is `host`."""
        encrypted = await self._loop.start_tls(self.transport, self, context, server_hostname=host)
        if encrypted is None:
            raise ConnectionResetError
        self._transports = (encrypted, self.transport)
        self.transport = encrypted

    def send(self, head: bytes, body: bytes, *, deadline: float) -> asyncio.Future[None]:
        """Starts an exchange, and returns a future that is done when the status and the headers of the
        answer have arrived. `deadline` is a time of the event loop's clock. A large body is sent in
        pieces, as fast as the server accepts them. The pieces are not copied. Raises DeadlinePassed if
        the deadline has already passed; nothing was sent then."""
        assert self._reusable, "one exchange at a time"
        # The timer of an earlier exchange may still run. If it fires before this deadline, it is kept.
        if deadline < self._timer_at:
            if deadline <= self._loop.time():
                raise DeadlinePassed("the deadline passed before the request was sent")
            self._set_timer(deadline)
        self._reusable = None
        self.status = self._overhead_bytes = 0
        self._received_headers.clear()
        self._progress_at = inf
        self._deadline = deadline
        if len(body) <= _PIECE_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self._unsent = memoryview(body)
            self._continue_writing()
        waiter = self._waiter = self._loop.create_future()
        return waiter

    async def read_whole(self, bytes_max: int) -> bytes:
        """Returns the rest of the body. Raises AnswerTooLarge if the rest has more than `bytes_max`
        bytes. Never holds more than `bytes_max` bytes plus the data of one network read in memory."""
        if self._reusable is None:
            await self._wait_for_rest(bytes_max)
        body = self._body
        if len(body) > bytes_max:
            raise AnswerTooLarge("the answer is too large")
        return bytes(body)

    async def _wait_for_rest(self, bytes_max: int) -> None:
        """Waits until the answer is complete, or until more than `bytes_max` bytes have arrived."""
        self._buffered_max = bytes_max
        if self._paused:
            self._resume_reading()
        progress = 0
        while self._reusable is None and len(self._body) <= bytes_max:
            if len(self._body) > progress:
                progress = len(self._body)
                self.mark_progress()
            await self._next_data()
        self._buffered_max = _BUFFERED_BYTES_MAX

    async def read(self, relay: Callable[[bytes], int] | None = None) -> bytes:
        """Waits for data, and returns the part of the body that arrived since the last read.
        Returns empty bytes at the end of the body.

        While this method waits, it passes received data to `relay` before the parser sees the data,
        but only if the data begins with an HTTP chunk of the body. `relay` returns the number of bytes
        that it processed, which have to be whole chunks; this method returns only the remaining bytes.
        Processed bytes restart the idle timeout."""
        while not self._body:
            if self._reusable is not None:
                return b""
            self._relay = relay if self._at_chunk_start else None
            await self._next_data()
        body = bytes(self._body)
        self._body = b""
        if self._paused:
            self._resume_reading()
        return body

    def mark_progress(self) -> None:
        """Restarts the idle timeout. The timeout applies only after the first call of this method.
        Until then the request may still be in the backend's queue, so only the deadline limits the
        wait."""
        self._progress_at = self._loop.time()
        if self._progress_at + self._idle_s < self._timer_at:
            self._set_timer(self._progress_at + self._idle_s)

    def finish(self) -> bool | None:
        """Ends the exchange. The result is true if the connection can serve another exchange. If it is
        not, the caller has to call `abort`."""
        self._relay = None
        self._body = b""
        self.idle_since = self._loop.time()
        return self._reusable

    def drain(self) -> None:
        """Reads an answer to its end, within limits, and discards it. When the answer is complete, the
        connection calls `on_drained`. If a limit is reached first, the connection closes."""
        if self._reusable:
            self._on_drained(self)
            return
        if self._failure is not None or self._lost or self._reusable is not None:
            self.abort()
            return
        self._relay = None
        self._body = b""
        self._drain_timer = self._loop.call_later(_DRAIN_TIMEOUT_S, self.abort)
        if self._paused:
            self._resume_reading()

    def abort(self) -> None:
        self.finish()
        self._stop_draining()
        self._unsent = None
        self._cancel_timer()
        self.transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._transports = (self.transport,)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._continue_writing()

    def data_received(self, data: bytes) -> None:
        relay = self._relay
        if relay is not None and not self._waiter.done():
            relayed_bytes = relay(data)
            if relayed_bytes:
                self._progress_at = self._loop.time()
                if relayed_bytes == len(data):
                    return
                data = data[relayed_bytes:]
        elif self._reusable is not None:
            # No answer is expected. The next exchange could mistake this data for its answer.
            self._reusable = False
            self.transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self._reusable is None:
                self._fail(ExchangeBroken("the answer is not HTTP"))
            else:
                self._reusable = False
        if self._reusable is None:
            self._limit_answer(data)
        if self.status and not self._waiter.done():
            self._waiter.set_result(None)
        elif self._drain_timer is not None:
            self._continue_draining()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._unsent = None
        self._cancel_timer()
        self._stop_draining()
        if self._reusable is None:
            if (
                exc is None
                and self._failure is None
                and self.status
                and b"content-length" not in self.headers
                and b"transfer-encoding" not in self.headers
            ):
                # The server marks the end of the body by closing the connection.
                self._reusable = False
            elif self._failure is None:
                self._failure = ExchangeBroken("the connection was closed")
            self._wake()
        else:
            self._reusable = False
        self._on_lost(self)
        # The parser and the connection refer to each other, so both would stay in memory until the
        # next garbage collection.
        del self._parser

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._reusable is not None:
            # The server sends a second answer to one request. The next exchange could mistake that
            # answer for its own.
            raise ExchangeBroken("the answer is complete")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        headers = self._received_headers
        if status < 200:  # an interim answer
            headers.clear()
            return
        self.status = status
        self._overhead_bytes = _CONTENT
        if b"".join(headers).islower():
            self.headers = headers.copy()
        else:
            self.headers = {}
            for name, value in headers.items():
                self.headers.setdefault(name.lower(), value)

    def on_body(self, body: bytes) -> None:
        self._overhead_bytes = _CONTENT
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytes):
            self._body = bytearray().join((self._body, body))
        else:
            self._body += body

    def on_chunk_complete(self) -> None:
        self._overhead_bytes = _CHUNK_COMPLETE

    def on_message_complete(self) -> None:
        if not self.status:  # an interim answer
            return
        # A server may answer before it has read the whole request. If the rest were not yet written to
        # the socket, the server would read the next request as this rest.
        self._reusable = (
            self._parser.should_keep_alive()
            and self._unsent is None
            and not any(map(_unwritten_bytes, self._transports))
        )

    # Private helpers.

    def _continue_writing(self) -> None:
        while (
            self._unsent is not None
            and not self._writing_paused
            and not self.transport.is_closing()
        ):
            self.transport.write(self._unsent[:_PIECE_BYTES])
            rest = self._unsent[_PIECE_BYTES:]
            self._unsent = rest if rest.nbytes else None

    def _limit_answer(self, data: bytes) -> None:
        """Handles received data that does not complete the answer. Fails the exchange if the headers or
        the framing of the answer are too large. Stops reading from the socket while too much of the body
        is buffered."""
        overhead = self._overhead_bytes
        self._at_chunk_start = overhead == _CHUNK_COMPLETE and data.endswith(_CHUNK_END)
        self._overhead_bytes = overhead + len(data) if overhead >= 0 else 0
        if self._overhead_bytes > HEAD_BYTES_MAX:
            part = "framing" if self.status else "head"
            self._fail(ExchangeBroken(f"the answer's {part} is too large"))
        may_pause = not self._paused and self._drain_timer is None
        if may_pause and len(self._body) > self._buffered_max:
            self._paused = True
            self.transport.pause_reading()

    def _next_data(self) -> asyncio.Future[None]:
        """Returns a future that is done when data has arrived or the exchange has failed. Raises the
        failure if the exchange has already failed."""
        if self._failure is not None:
            raise self._failure
        assert self._waiter.done(), "one reader at a time"
        self._waiter = self._loop.create_future()
        return self._waiter

    def _resume_reading(self) -> None:
        if not self._lost:
            self._paused = False
            self.transport.resume_reading()

    def _continue_draining(self) -> None:
        if self._reusable:
            self._stop_draining()
            self._on_drained(self)
        elif self._reusable is not None or len(self._body) > _DRAINED_BYTES_MAX:
            self.abort()

    def _stop_draining(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None

    def _check_time(self) -> None:
        """Fails the exchange if the deadline or the idle timeout has passed; otherwise sets the
        timer again. One timer serves both limits, and all exchanges of the connection. Neither a
        read nor the end of an exchange postpones the timer, because this would take too much time."""
        self._timer, self._timer_at = None, inf
        if self._reusable is not None or self._drain_timer is not None:
            return
        now = self._loop.time()
        idle_until = self._progress_at + self._idle_s
        has_waiting_read = not self._waiter.done()
        if now >= self._deadline:
            self._fail(DeadlinePassed("the deadline passed"))
        elif has_waiting_read and now >= idle_until:
            self._fail(PeerSilent("the backend sent no data for too long"))
        else:
            # A passed idle timeout is ignored if no read waits.
            if now >= idle_until:
                idle_until = now + self._idle_s
            self._set_timer(min(self._deadline, idle_until))

    def _set_timer(self, when: float) -> None:
        self._cancel_timer()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._check_time)

    def _fail(self, failure: HttpFailure) -> None:
        self._cancel_timer()
        if self._failure is None:
            self._failure = failure
        self._stop_draining()
        self._wake()
        self.transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, inf

    def _wake(self) -> None:
        """Ends the wait for the headers or for data, after a failure or the end of the answer."""
        waiter = self._waiter
        if waiter.done():
            return
        if self._failure is None or self.status:
            waiter.set_result(None)
        else:
            waiter.set_exception(self._failure)
