"""Serves one HTTP/1.1 connection: answers its requests in order, within limits of size and time.

Clients that send or read too slowly are disconnected. Invalid requests are rejected in the error
envelope, with a request id.
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import cast

from tollkeeper.api.http.envelope import BodyTimeout, render_error
from tollkeeper.api.http.exchange import Application
from tollkeeper.domain.errors import TollkeeperError, Unavailable
from tollkeeper.hosting.arrivals import Arrivals, network_of
from tollkeeper.hosting.connection_room import ConnectionRoom
from tollkeeper.hosting.http_exchange import HttpExchange, answer_head
from tollkeeper.hosting.request_parser import RequestParser
from tollkeeper.services.request_ids import new_request_id_text

# The size of one read: small, except for a body that the application has asked for. Earlier data is
# not counted against the client's memory.
_READ_BYTES = 16 << 10
_BODY_READ_BYTES = 256 << 10
# Requests that arrive while another one is answered wait unread. Beyond this size the socket is not
# read, and a disconnect is noticed only when the next request's turn comes.
_UNPARSED_BYTES_MAX = _READ_BYTES
# How much of an answer may wait for a client that does not read, before the application has to
# wait.
_UNSENT_BYTES = 16 << 10
# An answer may be complete before its request is. For this long the rest of the request is read and
# dropped: closing at once would reset the connection, and the client would lose the answer.
_LINGER_S = 2.0
_LINGER_AFTER_REFUSAL_S = 0.5
# The minimum speed of a body, measured over `header_timeout_s` (or `keep_alive_s`, if that is
# shorter).
_BODY_BYTES_PER_S_MIN = 1 << 10


@dataclass(frozen=True, slots=True)
class HttpLimits:
    # How long an idle connection stays open.
    keep_alive_s: float
    # The maximum number of open connections. Beyond it, idle ones are closed or new ones are
    # rejected.
    connections_max: int
    # How long the headers of a request may take to arrive, and their maximum size.
    header_timeout_s: float = 10
    header_bytes_max: int = 16_384
    # How long a client may not read before it is disconnected.
    write_timeout_s: float = 60


@dataclass(slots=True)
class ServerState:
    """Holds the objects that all connections of one server share."""

    app: Application
    limits: HttpLimits
    # Decides when new requests begin.
    arrivals: Arrivals
    room: "ConnectionRoom[HttpConnection]" = field(init=False)
    # The read buffers. The loop reads from one connection at a time, so all of them share these.
    buffer: memoryview = field(init=False)
    small_buffer: memoryview = field(init=False)
    connections: "set[HttpConnection]" = field(default_factory=set)
    # Requests whose application still runs.
    exchanges: set[HttpExchange] = field(default_factory=set)
    # Whether each connection is closed with its next answer.
    leaving: bool = False
    stopping: bool = False

    def __post_init__(self) -> None:
        self.room = ConnectionRoom(self.limits.connections_max, HttpConnection.close_if_idle)
        self.buffer = memoryview(bytearray(_BODY_READ_BYTES))
        self.small_buffer = self.buffer[:_READ_BYTES]


class HttpConnection(asyncio.BufferedProtocol):
    """Serves one connection. Parses the next request when the current answer is complete."""

    def __init__(self, state: ServerState, loop: asyncio.AbstractEventLoop) -> None:
        self._state = state
        self._limits = state.limits
        self._loop = loop
        self._transport: asyncio.Transport
        # Set with the transport. `ready` means that it is open and the client reads fast enough.
        self.write: Callable[[bytes], None]
        self.ready = False
        self._parser = RequestParser(self, state.limits.header_bytes_max)
        # The request that is being answered.
        self._current: HttpExchange | None = None
        # The same request while the bytes that its headers came with are still being parsed.
        self._unstarted: HttpExchange | None = None
        # Requests that were parsed together with the end of the previous one.
        self._waiting: list[HttpExchange] = []
        # The owner of the last request; None if unknown.
        self.owner: Hashable = None
        # Bytes that are not parsed yet.
        self._unparsed = bytearray()
        self._has_served = False
        # Why no further request can be read. It is sent after the earlier answers.
        self._refusal: TollkeeperError | None = None
        # Whether all further data is dropped.
        self._dropping = False
        self._closed = False
        self._reading_paused = False
        self._writable: asyncio.Event | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The start time of incomplete headers, or of the connection.
        self._headers_since: float | None = None
        self._idle_since = 0.0

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_UNSENT_BYTES)
        self.write = self._transport.write
        self.ready = True
        self._headers_since = self._loop.time()
        self._state.connections.add(self)
        self._check_time_at(self._headers_since + self._limits.header_timeout_s)
        if self._state.stopping:
            self._close()
        elif not self._state.room.enter(self, network_of(self._host)):
            self._refuse(_no_room())

    def get_buffer(self, sizehint: int) -> memoryview:
        exchange = self._parser.exchange
        if exchange is not None and exchange.waits_for_body:
            return self._state.buffer
        return self._state.small_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._dropping:
            return
        data = bytes(self._state.buffer[:nbytes])
        if self._parser.exchange is not None:
            self._feed(data)
        elif self._current or self._waiting or self._unparsed:
            self._hold(data)
        elif self._state.arrivals.take(self.owner) or self._is_refused_soon():
            self._begin(data)
        else:
            self._hold(data)
            self._wait_for_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._state.room.leave(self)
        self._closed = self._dropping = True
        self._parser.close()
        self.ready = False
        self._waiting.clear()
        self._unparsed.clear()
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        if self._writable is not None:
            self._writable.set()
        if self._current is not None:
            self._current.left()

    def pause_writing(self) -> None:
        """Gives a client that reads too slowly `write_timeout_s` to catch up."""
        self._writable = asyncio.Event()
        self.ready = False
        # Its further requests can wait until it reads.
        self.pause_reading()
        self._start_write_timer()

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        self.ready = not self._closed
        if len(self._unparsed) <= _UNPARSED_BYTES_MAX:
            self.resume_reading()
        if self._closed:
            self._start_write_timer()
        elif self._current is None:
            self._next()

    # Called by the exchange.

    @property
    def peer(self) -> str:
        address = self._transport.get_extra_info("peername")
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""

    @property
    def _host(self) -> str:
        address = self._transport.get_extra_info("peername")
        return address[0] if isinstance(address, tuple) else ""

    @property
    def paused(self) -> bool:
        return self._writable is not None and not self._writable.is_set()

    async def resumed(self) -> None:
        if self._writable is not None:
            await self._writable.wait()

    def send(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def read_body(self) -> None:
        self.resume_reading()
        self._check_time_at(self._loop.time() + self._interval_s)

    def pause_reading(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def recognised(self, owner: Hashable) -> None:
        self.owner = owner
        self._state.room.recognise(self, owner)

    def answered(self, exchange: HttpExchange) -> None:
        """Handles the end of an exchange's answer."""
        if self._current is exchange:
            self._current = None
            self.owner = exchange.owner
            if not exchange.keep_alive or self._state.stopping:
                self._close(linger_s=_LINGER_S if exchange.body is None else 0)
            elif self.ready:
                self._next()

    def abandoned(self, exchange: HttpExchange) -> None:
        """Handles an exchange without an end of its answer, or without any answer."""
        if self._current is exchange:
            self._current = None
            self._close()

    # Called by the room for connections.

    def close_if_idle(self) -> bool:
        """Closes the connection if the server has nothing to do for it until its client sends
        something. Returns whether it did."""
        if self._current is not None:
            if not self._current.waits_for_body:
                return False
            self._current.spoiled(_no_room())
        elif self._waiting or (self._unparsed and not self.paused):
            return False
        elif self._closed or self.paused:
            self._transport.abort()
        else:
            self._close()
        return True

    # Called by the server.

    @property
    def is_receiving(self) -> bool:
        """Tells whether a request may be arriving: the connection is new, or headers have begun."""
        return self._headers_since is not None or bool(self._unparsed) or bool(self._waiting)

    def stop_accepting(self) -> None:
        """Accepts no further request."""
        self._waiting.clear()
        self._unparsed.clear()
        if self._current is None:
            self._close()
        else:
            self._current.keep_alive = False

    def close(self) -> None:
        self._close()

    # Called by the parser.

    def request_begun(self, exchange: HttpExchange) -> None:
        self._headers_since = None
        if self._current is None and not self.paused:
            self._current = self._unstarted = exchange
        else:
            self._waiting.append(exchange)

    # Parsing.

    def _is_refused_soon(self) -> bool:
        """Tells whether the data is most likely a call that is rejected at once: rejecting it takes
        little more time than waiting for a turn."""
        return self.owner is not None and self._state.arrivals.refuses_soon()

    def _wait_for_turn(self) -> None:
        if self.owner is None:
            self._state.arrivals.wait_as_stranger(self._host, self._begin_unparsed)
        else:
            self._state.arrivals.wait(self.owner, self._begin_unparsed)

    def _begin(self, data: bytes) -> None:
        """Parses data between two requests, or in the headers of one."""
        exchange = self._parser.repeated(data) if self.ready else None
        if exchange is None:
            self._feed(data)
        else:
            self._start(exchange)

    def _begin_unparsed(self) -> None:
        if self._current is None and not self._dropping:
            data = bytes(self._unparsed)
            self._unparsed.clear()
            self._begin(data)
            if len(self._unparsed) <= _UNPARSED_BYTES_MAX:
                self.resume_reading()

    def _feed(self, data: bytes) -> None:
        self._parse(data)
        exchange = self._unstarted
        if exchange is not None:
            self._unstarted = None
            self._start(exchange)

    def _parse(self, data: bytes) -> None:
        """Parses the current request's data, and buffers the rest."""
        parser, start, size = self._parser, 0, len(data)
        while start < size:
            try:
                start += parser.feed(data, start)
            except TollkeeperError as error:
                self._fail(error)
                return
            if parser.exchange is None and (self._current is not None or self._waiting):
                break
        if start < size:
            self._hold(data[start:])
        elif parser.overhead_bytes and self._headers_since is None and parser.exchange is None:
            # The headers, or empty lines before them, did not arrive in one piece.
            self._headers_since = self._loop.time()
            self._check_time_at(self._headers_since + self._limits.header_timeout_s)

    def _hold(self, data: bytes) -> None:
        if self._current is not None and not self._current.keep_alive:
            return  # the connection is closed after the current answer
        self._unparsed += data
        if len(self._unparsed) > _UNPARSED_BYTES_MAX:
            self.pause_reading()

    # Answering.

    def _start(self, exchange: HttpExchange) -> None:
        self._current = exchange
        self._has_served = True
        state = self._state
        if state.leaving:
            exchange.keep_alive = False
        work = state.app(exchange)
        if work is not None:
            state.exchanges.add(exchange)
            exchange.task = self._loop.create_task(exchange.serve(work, state.exchanges))

    def _next(self) -> None:
        """Continues with the next request after a complete answer."""
        if self._waiting:
            self._start(self._waiting.pop(0))
        elif self._refusal is not None:
            self._refuse(self._refusal)
        elif self._unparsed:
            # Not at once, because the application that has just answered is still on the stack.
            self._wait_for_turn()
        else:
            self._idle_since = self._loop.time()

    def _fail(self, error: TollkeeperError) -> None:
        """Handles data that is not a request, or not the rest of one."""
        self._dropping = True
        exchange = self._parser.exchange
        if exchange is not None:
            self._parser.exchange = None
            exchange.spoiled(error)
            return
        last = self._waiting[-1] if self._waiting else self._current
        if last is not None and last.keep_alive and self._parser.has_target:
            self._refusal = error
        elif last is not None:
            last.keep_alive = False
        elif self._has_served and not self._parser.has_target:
            # Data after a complete request does not even begin like another one.
            self._close()
        else:
            self._refuse(error)

    def _refuse(self, error: TollkeeperError) -> None:
        """Sends an error and closes. Does not call the application, because there is no request."""
        rendered = render_error(error, new_request_id_text())
        head = answer_head(rendered.status, rendered.headers, keep_alive=False)
        self.send(head + rendered.body)
        self._close(linger_s=_LINGER_AFTER_REFUSAL_S)

    def _close(self, *, linger_s: float = 0) -> None:
        """Closes when everything is sent. If the client may still be sending, half-closes the
        connection first and drops its data for a short time."""
        if self._closed:
            return
        self._closed = self._dropping = True
        self.ready = False
        self._waiting.clear()
        self._unparsed.clear()
        if self._transport.is_closing():
            return
        self._start_write_timer()
        if linger_s and self._transport.can_write_eof():
            self.resume_reading()
            self._check_time_at(self._loop.time() + linger_s)
            try:
                self._transport.write_eof()
            except OSError:
                # the client has disconnected, and the loop has not noticed yet
                self._transport.abort()
        else:
            self._transport.close()

    # Time.

    def _start_write_timer(self) -> None:
        if self._write_timer is None and self._transport.get_write_buffer_size():
            self._write_timer = self._loop.call_later(
                self._limits.write_timeout_s, self._transport.abort
            )

    def _check_time_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._check_time)

    @property
    def _interval_s(self) -> float:
        return min(self._limits.header_timeout_s, self._limits.keep_alive_s)

    def _check_time(self) -> None:
        """Checks all deadlines with one timer. It reads the clock when it fires, so that a timely
        request need not move it."""
        now = self._loop.time()
        if self._closed:
            self._transport.close()
        elif self._current is not None or self._waiting or self._unparsed:
            self._check_body_time()
            self._check_time_at(now + self._interval_s)
        elif self._headers_since is not None:
            self._check_header_time(now)
        elif now < self._idle_since + self._limits.keep_alive_s:
            self._check_time_at(self._idle_since + self._limits.keep_alive_s)
        else:
            self._close()

    def _check_body_time(self) -> None:
        exchange = self._current
        if exchange is None or not exchange.waits_for_body:
            return
        if exchange.is_too_slow(int(_BODY_BYTES_PER_S_MIN * self._interval_s)):
            exchange.spoiled(BodyTimeout("The body arrives too slowly."))

    def _check_header_time(self, now: float) -> None:
        assert self._headers_since is not None
        if now < self._headers_since + self._limits.header_timeout_s:
            self._check_time_at(self._headers_since + self._limits.header_timeout_s)
        elif self._parser.in_head:
            self._refuse(BodyTimeout("The request's headers did not arrive in time."))
        else:
            self._close()


def _no_room() -> Unavailable:
    message = "This process has no room for another connection."
    return Unavailable(message, retry_after_s=1)
