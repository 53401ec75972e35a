"""Serves one HTTP/1.1 connection: answers its requests in order, and limits their size and duration.

The server disconnects clients that send or read too slowly. It answers an invalid request with an
error in the API's JSON format, including a request id.
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import time
from typing import cast
from weakref import WeakValueDictionary

from tollkeeper.api.http.envelope import BodyTimeout, ErrorStyle, render_error
from tollkeeper.api.http.exchange import Application
from tollkeeper.domain.errors import TollkeeperError, Unavailable
from tollkeeper.hosting.arrivals import Arrivals
from tollkeeper.hosting.http_exchange import HttpExchange, first_lines
from tollkeeper.hosting.request_parser import KnownHeaders, RequestParser
from tollkeeper.hosting.request_rules import path_of_request_line
from tollkeeper.runtime.connection_limit import ConnectionLimit, network_of
from tollkeeper.runtime.fair_queue import Callback
from tollkeeper.services.request_ids import new_request_id_text

# The size of one read from the socket. Reads are small until the application has asked for the body,
# because only after that are received bytes counted against the client's share of memory.
_READ_BYTES = 16 << 10
_BODY_READ_BYTES = 256 << 10
# Data that arrives while the server answers an earlier request is buffered without parsing. If more
# than this is buffered, the server stops reading the socket. It then notices a disconnect only when
# it reads again for the next request.
_UNPARSED_BYTES_MAX = _READ_BYTES
# The maximum size of buffered answer data for a client that does not read. Beyond it, the
# application has to wait before it writes more.
_UNSENT_BYTES_MAX = 16 << 10
# If an answer is complete before its request, the server reads and drops the remaining request for
# this long before it closes the connection. Closing immediately would reset the connection, and the
# client would lose the answer.
_LINGER_S = 2.0
# Replaces `_LINGER_S` after an error that the server sends without calling the application.
_LINGER_AFTER_REFUSAL_S = 0.5
# The minimum speed at which a body must arrive. It is measured over intervals of `header_timeout_s`
# or `keep_alive_s`, whichever is shorter.
_BODY_BYTES_PER_S_MIN = 1 << 10


@dataclass(frozen=True, slots=True)
class HttpLimits:
    # The time after which an idle connection is closed.
    keep_alive_s: float
    # The maximum number of open connections. To stay below it, the server closes idle connections or
    # rejects new ones.
    connections_max: int
    # The maximum time until all headers of a request have arrived, and their maximum size.
    header_timeout_s: float = 10
    header_bytes_max: int = 16_384
    # The time after which a client that does not read its answer is disconnected.
    write_timeout_s: float = 60


@dataclass(slots=True)
class ServerState:
    """Holds the objects that all connections of one server share."""

    app: Application
    limits: HttpLimits
    # Limits how many requests begin in one iteration of the event loop.
    arrivals: Arrivals
    # Returns the style of errors at a path.
    error_style: Callable[[bytes], ErrorStyle]
    # Limits the number of open connections.
    connection_limit: "ConnectionLimit[HttpConnection]" = field(init=False)
    # The read buffers. All connections can share them, because the event loop reads from one connection
    # at a time.
    buffer: memoryview = field(init=False)
    small_buffer: memoryview = field(init=False)
    connections: "set[HttpConnection]" = field(default_factory=set)
    known_headers: KnownHeaders = field(default_factory=WeakValueDictionary)
    # The requests on which the application is still working, by the task of this work.
    exchanges: dict[asyncio.Task[None], HttpExchange] = field(default_factory=dict)
    # True if the server closes each connection after its next answer.
    leaving: bool = False
    # True if the server accepts no further request.
    stopping: bool = False

    def __post_init__(self) -> None:
        self.connection_limit = ConnectionLimit(
            self.limits.connections_max,
            HttpConnection.close_if_idle,
            HttpConnection.close_if_waiting,
        )
        self.buffer = memoryview(bytearray(_BODY_READ_BYTES))
        self.small_buffer = self.buffer[:_READ_BYTES]

    def work_ended(self, task: asyncio.Task[None]) -> None:
        """Ends the exchange of this task, because the application's work has ended."""
        exchange = self.exchanges.pop(task)
        if not exchange.finished:
            exchange.abandon()
        # The callbacks refer to the application's objects, which refer back to the exchange. Clearing
        # them breaks these reference cycles, so that reference counting frees the request, with its body
        # and prompt, immediately.
        exchange.disconnect_callback = exchange.on_stop = None


class HttpConnection(asyncio.BufferedProtocol):
    """Serves one connection. Parses the next request when the current answer is complete."""

    # The defaults are class attributes, which saves time: a new connection changes only a few of them.
    _transport: asyncio.Transport
    # Set in `connection_made`. `ready` means that the connection is open and that the client reads fast
    # enough.
    write: Callable[[bytes], None]
    ready = False
    # The request that the application is answering.
    _current: HttpExchange | None = None
    # The current request, until the data that arrived together with its headers is parsed. Only then is
    # the application called.
    _unstarted: HttpExchange | None = None
    # The owner (usually the organization) of the last request; None if unknown.
    owner: Hashable = None
    # True if the next data begins a request, unless a request is being answered: the connection is
    # `ready`, and there is nothing for `_start_next`.
    _is_clear = False
    # The error for invalid data that follows valid requests. The server sends this error after the
    # answers to the valid requests.
    _refusal: TollkeeperError | None = None
    # True if the server ignores all further data from the client.
    _dropping = False
    _closed = False
    _reading_paused = False
    _writable: asyncio.Event | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _deadline_timer: asyncio.TimerHandle | None = None
    # The time at which the currently incomplete headers began to arrive. For the first request, the time
    # at which the connection was opened.
    _headers_since: float | None = None
    # The time at which the last answer ended; 0 before the first answer.
    _idle_since = 0.0

    def __init__(self, state: ServerState, loop: asyncio.AbstractEventLoop) -> None:
        self._state = state
        self._limits = state.limits
        self._loop = loop
        self._parser = RequestParser(self, state.limits.header_bytes_max, state.known_headers)
        # Parsed requests that wait for the answer to the current request.
        self._waiting: list[HttpExchange] = []
        # Received bytes that are not parsed yet.
        self._unparsed = bytearray()
        # The buffer for the next read.
        self._buffer = state.small_buffer

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_UNSENT_BYTES_MAX)
        self.write = self._transport.write
        self.ready = self._is_clear = True
        self._headers_since = self._loop.time()
        self._state.connections.add(self)
        self._check_time_at(self._headers_since + self._limits.header_timeout_s)
        if self._state.stopping:
            self._close()
        elif not self._state.connection_limit.enter(self, network_of(self._host)):
            self._refuse(_no_room())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._buffer[:nbytes].tobytes()
        if self._current is None and self._is_clear:
            if self._state.arrivals.take(self.owner):
                self._start(self._parser.parse_repeated(data) or self._parse(data))
            elif self._state.arrivals.probably_rejects(self.owner):
                self._begin_early(data)
            else:
                self._keep_unparsed(data)
                self._wait_for_turn(self._begin_next)
        elif not self._dropping:
            if self._parser.exchange is not None:
                self._start(self._parse(data))
                self._limit_body_reads()
            else:
                self._keep_unparsed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._state.connection_limit.leave(self)
        self._closed = self._dropping = True
        self._parser.close()
        self.ready = self._is_clear = False
        self._waiting.clear()
        self._unparsed.clear()
        for timer in (self._deadline_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        if self._writable is not None:
            self._writable.set()
        if self._current is not None:
            self._current.handle_disconnect()

    def pause_writing(self) -> None:
        """Gives a client that reads too slowly `write_timeout_s` to catch up."""
        self._writable = asyncio.Event()
        self.ready = self._is_clear = False
        # The client's further requests can wait until the client reads.
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
            # The transport closes only after it has sent its buffer. The timer limits that time.
            self._start_write_timer()
        elif self._current is None:
            self._idle_since = self._loop.time()
            self._start_next()

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
        if self._current is not None and self._current.content_length:
            # A chunked body keeps the small buffer: the chunks in it may be tiny, and each takes time.
            self._buffer = self._state.buffer
        self.resume_reading()
        self._check_time_at(self._loop.time() + self._body_check_interval_s)

    def body_arrived(self) -> None:
        self._buffer = self._state.small_buffer
        # Reading may be paused because the body is large. It must resume after the body, because the
        # server notices a disconnect only while it reads.
        self.resume_reading()

    def pause_reading(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def recognised(self, owner: Hashable) -> None:
        self.owner = owner
        self._state.connection_limit.recognise(self, owner)

    def send_last(self, exchange: HttpExchange, last: bytes) -> None:
        """Sends the last piece of the answer to this exchange. Then starts the next request or closes the
        connection."""
        self._current = None
        self.owner = exchange.owner
        if self._is_clear and exchange.keep_alive:
            self.write(last)
            self._idle_since = self._loop.time()
            return
        self.send(last)
        if not exchange.keep_alive:
            self._close(linger_s=_LINGER_S if exchange.body is None else 0)
        elif self.ready:
            self._idle_since = self._loop.time()
            self._start_next()

    def abandoned(self, exchange: HttpExchange) -> None:
        """Closes the connection, because the answer to this exchange is incomplete or missing."""
        if self._current is exchange:
            self._current = None
            self._close()

    # Called by `ConnectionLimit`.

    def close_if_idle(self) -> bool:
        """Closes the connection if the server can do nothing for it until the client sends or reads
        data. If a body is still arriving, its request fails first. Returns False if the connection stays
        open."""
        if self._current is not None:
            if not self._current.waits_for_body:
                return False
            self._current.fail_body(_no_room())
        elif self._waiting or (self._unparsed and not self.paused):
            return False
        elif self._closed or self.paused:
            self._transport.abort()
        else:
            self._close()
        return True

    def close_if_waiting(self) -> bool:
        """Refuses the next request and closes the connection, if this request waits for its turn. Returns
        False if the connection stays open."""
        if self._current is not None or not (self._waiting or self._unparsed):
            return False
        self._refuse(_no_room())
        return True

    # Called by the server.

    @property
    def is_receiving(self) -> bool:
        """Tells whether a request may be arriving: the connection is new, headers have begun, or
        requests wait for their turn."""
        return self._headers_since is not None or bool(self._unparsed) or bool(self._waiting)

    def stop_accepting(self) -> None:
        """Drops all requests that are not being answered yet, and accepts no further request."""
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
        if self._current is None and not self._waiting and not self.paused:
            self._current = self._unstarted = exchange
        else:
            self._waiting.append(exchange)
            self._is_clear = False

    # Parsing.

    def _wait_for_turn(self, callback: Callback) -> None:
        if self.owner is None:
            self._state.arrivals.wait_as_stranger(self._host, callback)
        else:
            self._state.arrivals.wait(self.owner, callback)

    def _limit_body_reads(self) -> None:
        """Stops reading an incomplete body until a later iteration of the event loop, if this iteration has
        done enough for this client. Otherwise, bodies in many small parts would make iterations long."""
        if (
            self._parser.exchange is not None
            and not self._reading_paused
            and not self._state.arrivals.take(self.owner)
        ):
            self.pause_reading()
            self._wait_for_turn(self.resume_reading)

    def _begin_next(self) -> None:
        if self._current is not None or not self.ready:
            return
        if self._waiting:
            self._start(self._waiting.pop(0))
        else:
            data = bytes(self._unparsed)
            self._unparsed.clear()
            self._is_clear = True
            self._start(self._parser.parse_repeated(data) or self._parse(data))
            if len(self._unparsed) <= _UNPARSED_BYTES_MAX:
                self.resume_reading()

    def _begin_early(self, data: bytes) -> None:
        """Begins a request before its turn, because the application will probably reject it immediately. If
        the application does not, counts the request."""
        owner = self.owner
        self._start(self._parser.parse_repeated(data) or self._parse(data))
        if self._current is not None:
            self._state.arrivals.count(owner)

    def _parse(self, data: bytes) -> HttpExchange | None:
        """Parses `data` up to the end of the current request, and buffers any data after it. Returns the
        request if its headers are complete now and it can be started, otherwise None."""
        parser, start, size = self._parser, 0, len(data)
        known = parser.parse_known(data)
        if known is not None:
            self._headers_since = None
            return known
        try:
            while start < size:
                start += parser.feed(data, start)
                if parser.exchange is None and (self._current is not None or self._waiting):
                    break
        except TollkeeperError as error:
            self._fail(error)
        else:
            if start < size:
                self._keep_unparsed(data[start:])
            elif parser.overhead_bytes and self._headers_since is None and parser.exchange is None:
                # The headers are incomplete: a part of them, or only empty lines before them, has arrived.
                self._headers_since = self._loop.time()
                self._check_time_at(self._headers_since + self._limits.header_timeout_s)
        exchange, self._unstarted = self._unstarted, None
        return exchange

    def _keep_unparsed(self, data: bytes) -> None:
        if self._current is not None and not self._current.keep_alive:
            return  # the connection is closed after the current answer
        self._unparsed += data
        self._is_clear = False
        if len(self._unparsed) > _UNPARSED_BYTES_MAX:
            self.pause_reading()

    # Answering.

    def _start(self, exchange: HttpExchange | None) -> None:
        """Calls the application. Does nothing if `exchange` is None."""
        if exchange is None:
            return
        self._current = exchange
        state = self._state
        if state.leaving:
            exchange.keep_alive = False
        work = state.app(exchange)
        # If `work` is None, the application has already answered.
        if work is not None:
            # The loop's method `create_task` would also create a name for the task.
            task = asyncio.Task(work, loop=self._loop, name="request")
            state.exchanges[task] = exchange
            task.add_done_callback(state.work_ended)

    def _start_next(self) -> None:
        """Starts the next request after an answer is complete."""
        if not self._waiting and self._refusal is not None:
            self._refuse(self._refusal)
        elif self._waiting or self._unparsed:
            # The request waits for a later callback, because the application that has just answered is
            # still on the call stack.
            self._wait_for_turn(self._begin_next)
        else:
            self._is_clear = True

    def _fail(self, error: TollkeeperError) -> None:
        """Handles invalid data. Invalid data in a body makes the request fail. Invalid data outside a body is
        answered with an error, after the answers to all earlier requests. If the data does not begin like a
        request, it is answered only if it is the first data on the connection."""
        self._dropping = True
        exchange = self._parser.exchange
        if exchange is not None:
            self._parser.exchange = None
            exchange.fail_body(error)
            return
        last_request = self._waiting[-1] if self._waiting else self._current
        if last_request is not None and last_request.keep_alive and self._parser.has_target:
            self._refusal = error
            self._is_clear = False
        elif last_request is not None:
            last_request.keep_alive = False
        elif self._idle_since and not self._parser.has_target:
            self._close()
        else:
            self._refuse(error)

    def _refuse(self, error: TollkeeperError) -> None:
        """Sends an error and closes the connection. The application is not called, because there is no
        valid request."""
        style = self._state.error_style(self._refused_path())
        rendered = render_error(error, new_request_id_text(), style)
        lines = first_lines(rendered.status, False, int(time()))
        self.send(b"%b%b\r\n%b" % (lines, rendered.headers, rendered.body))
        self._close(linger_s=_LINGER_AFTER_REFUSAL_S)

    def _refused_path(self) -> bytes:
        """Returns the path of the next request, which may be invalid, incomplete or not parsed yet."""
        if self._waiting:
            return self._waiting[0].head.path
        if self._unparsed:
            return path_of_request_line(bytes(self._unparsed))
        return self._parser.path

    def _close(self, *, linger_s: float = 0) -> None:
        """Closes the connection after all buffered data is sent. With `linger_s`, first closes only the
        sending side and drops the client's data for that time, because the client may still be
        sending."""
        if self._closed:
            return
        self._closed = self._dropping = True
        self.ready = self._is_clear = False
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
                # The client has disconnected, but the event loop has not noticed it yet.
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
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_timer = self._loop.call_at(when, self._check_time)

    @property
    def _body_check_interval_s(self) -> float:
        return min(self._limits.header_timeout_s, self._limits.keep_alive_s)

    def _check_time(self) -> None:
        """Checks the deadlines for headers, body and idle time, which share one timer. Requests do not
        reset the timer. If no deadline has passed when the timer fires, this method sets the timer again.
        """
        now = self._loop.time()
        if self._closed:
            self._transport.close()
        elif self._current is not None or self._waiting or self._unparsed:
            self._check_body_time()
            self._check_time_at(now + self._body_check_interval_s)
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
        if exchange.is_too_slow(int(_BODY_BYTES_PER_S_MIN * self._body_check_interval_s)):
            exchange.fail_body(BodyTimeout("The body arrives too slowly."))

    def _check_header_time(self, now: float) -> None:
        assert self._headers_since is not None
        if now < self._headers_since + self._limits.header_timeout_s:
            self._check_time_at(self._headers_since + self._limits.header_timeout_s)
        elif self._parser.in_head:
            self._refuse(BodyTimeout("The request's headers did not arrive in time."))
        else:
            self._close()


def _no_room() -> Unavailable:
    message = "The server has reached its limit of open connections."
    return Unavailable(message, retry_after_s=1)
