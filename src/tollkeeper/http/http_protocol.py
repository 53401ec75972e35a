"""One HTTP/1.1 connection: answers its requests in order, limits their size and time, disconnects clients
that send or read too slowly, and answers invalid requests with an error in the API's format."""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import time
from typing import cast
from weakref import WeakValueDictionary

from tollkeeper.core.errors import TollkeeperError, Unavailable
from tollkeeper.core.runtime.connection_limit import ConnectionLimit, network_of
from tollkeeper.core.runtime.fair_queue import Callback
from tollkeeper.core.runtime.request_ids import new_request_id_text
from tollkeeper.http.arrivals import Arrivals
from tollkeeper.http.envelope import BodyTimeout, ErrorStyle, render_error
from tollkeeper.http.exchange import Application
from tollkeeper.http.http_exchange import HttpExchange, first_lines
from tollkeeper.http.request_parser import KnownHeaders, RequestParser
from tollkeeper.http.request_rules import path_of_request_line

# Small until the application asks for the body, because only then bytes count against the client's share of
# memory.
_READ_BYTES = 16 << 10
_BODY_READ_BYTES = 256 << 10
# Of later requests, buffered without parsing. Beyond this the server stops reading, and notices a disconnect
# only when it reads again.
_UNPARSED_BYTES_MAX = _READ_BYTES
# For a client that doesn't read. Then the application has to wait.
_UNSENT_BYTES_MAX = 16 << 10
# If the answer is complete before its request, the rest is read and dropped for this long: closing at once
# would reset the connection, and the client would lose the answer.
_LINGER_S = 2.0
# After an error that the server sends by itself.
_LINGER_AFTER_REFUSAL_S = 0.5
# Measured over `header_timeout_s` or `keep_alive_s`, whichever is shorter.
_BODY_BYTES_PER_S_MIN = 1 << 10


@dataclass(frozen=True, slots=True)
class HttpLimits:
    keep_alive_s: float
    # The server closes idle connections, or rejects new ones, to stay below it.
    connections_max: int
    # For all headers, and their size.
    header_timeout_s: float = 10
    header_bytes_max: int = 16_384
    # For a client that doesn't read.
    write_timeout_s: float = 60


@dataclass(slots=True)
class ServerState:
    app: Application
    limits: HttpLimits
    arrivals: Arrivals
    # By path.
    error_style: Callable[[bytes], ErrorStyle]
    connection_limit: "ConnectionLimit[HttpConnection]" = field(init=False)
    # All connections share them, because the event loop reads one at a time.
    buffer: memoryview = field(init=False)
    small_buffer: memoryview = field(init=False)
    connections: "set[HttpConnection]" = field(default_factory=set)
    known_headers: KnownHeaders = field(default_factory=WeakValueDictionary)
    # By the task that works on it.
    exchanges: dict[asyncio.Task[None], HttpExchange] = field(default_factory=dict)
    # Close each connection after its next answer.
    leaving: bool = False
    # Accept no further request.
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
        exchange = self.exchanges.pop(task)
        if not exchange.finished:
            exchange.abandon()
        # They refer to the application's objects, which refer back. Without the cycle, the request with its
        # body and prompt is freed at once.
        exchange.disconnect_callback = exchange.on_stop = None


class HttpConnection(asyncio.BufferedProtocol):
    """Parses the next request when the current answer is complete."""

    # Class attributes save time: a new connection changes few.
    _transport: asyncio.Transport
    # Set in `connection_made`. `ready`: open, and the client reads fast enough.
    write: Callable[[bytes], None]
    ready = False
    # Being answered.
    _current: HttpExchange | None = None
    # Until the data that came with its headers is parsed. Only then is the application called.
    _unstarted: HttpExchange | None = None
    # Of the last request; None: unknown.
    owner: Hashable = None
    # `ready`, with nothing for `_start_next`: unless a request is being answered, the next data begins one.
    _is_clear = False
    # For invalid data, after the answers to the valid requests before.
    _refusal: TollkeeperError | None = None
    # Ignore whatever else comes.
    _dropping = False
    _closed = False
    _reading_paused = False
    _writable: asyncio.Event | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _deadline_timer: asyncio.TimerHandle | None = None
    # Since when the headers are incomplete; at first, since the connection was opened.
    _headers_since: float | None = None
    # 0 before the first answer.
    _idle_since = 0.0

    def __init__(self, state: ServerState, loop: asyncio.AbstractEventLoop) -> None:
        self._state = state
        self._limits = state.limits
        self._loop = loop
        self._parser = RequestParser(self, state.limits.header_bytes_max, state.known_headers)
        # For the current answer.
        self._waiting: list[HttpExchange] = []
        self._unparsed = bytearray()
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
        """The client has `write_timeout_s` to catch up."""
        self._writable = asyncio.Event()
        self.ready = self._is_clear = False
        # The client's other requests can wait until it reads.
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
            # The transport first sends its buffer; this limits the time.
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
            # Chunks may be tiny, and each takes time, so they keep the small buffer.
            self._buffer = self._state.buffer
        self.resume_reading()
        self._check_time_at(self._loop.time() + self._body_check_interval_s)

    def body_arrived(self) -> None:
        self._buffer = self._state.small_buffer
        # It may be paused for the large body, and the server notices a disconnect only while it reads.
        self.resume_reading()

    def pause_reading(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def recognised(self, owner: Hashable) -> None:
        self.owner = owner
        self._state.connection_limit.recognise(self, owner)

    def send_last(self, exchange: HttpExchange, last: bytes) -> None:
        """Then starts the next request or closes."""
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
        """The answer is incomplete or missing."""
        if self._current is exchange:
            self._current = None
            self._close()

    # Called by `ConnectionLimit`.

    def close_if_idle(self) -> bool:
        """If nothing can be done until the client sends or reads. A request whose body is arriving fails
        first. False: it stays open."""
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
        """Refuses a request that waits for its turn. False: it stays open."""
        if self._current is not None or not (self._waiting or self._unparsed):
            return False
        self._refuse(_no_room())
        return True

    # Called by the server.

    @property
    def is_receiving(self) -> bool:
        """The connection is new, headers have begun, or requests wait for their turn."""
        return self._headers_since is not None or bool(self._unparsed) or bool(self._waiting)

    def stop_accepting(self) -> None:
        """Requests that aren't being answered yet are dropped."""
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
        """Until a later iteration, if this one has done enough for the client: bodies in many small parts
        would make iterations long."""
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
        """The application will probably reject it at once. If not, it counts."""
        owner = self.owner
        self._start(self._parser.parse_repeated(data) or self._parse(data))
        if self._current is not None:
            self._state.arrivals.count(owner)

    def _parse(self, data: bytes) -> HttpExchange | None:
        """Up to the end of the current request; the rest is buffered. Returns the request if its headers are
        complete now and it can start."""
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
                # A part has come, or only empty lines.
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
        if exchange is None:
            return
        self._current = exchange
        state = self._state
        if state.leaving:
            exchange.keep_alive = False
        work = state.app(exchange)
        # None: it has answered already.
        if work is not None:
            # `create_task` would make up a name.
            task = asyncio.Task(work, loop=self._loop, name="request")
            state.exchanges[task] = exchange
            task.add_done_callback(state.work_ended)

    def _start_next(self) -> None:
        if not self._waiting and self._refusal is not None:
            self._refuse(self._refusal)
        elif self._waiting or self._unparsed:
            # The application that just answered is still on the stack.
            self._wait_for_turn(self._begin_next)
        else:
            self._is_clear = True

    def _fail(self, error: TollkeeperError) -> None:
        """In a body, the request fails. Elsewhere an error follows the answers so far; what doesn't begin
        like a request gets one only at the connection's start."""
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
        """Without calling the application: there is no valid request."""
        style = self._state.error_style(self._refused_path())
        rendered = render_error(error, new_request_id_text(), style)
        lines = first_lines(rendered.status, False, int(time()))
        self.send(b"%b%b\r\n%b" % (lines, rendered.headers, rendered.body))
        self._close(linger_s=_LINGER_AFTER_REFUSAL_S)

    def _refused_path(self) -> bytes:
        """Of a request that may be invalid, incomplete or not parsed yet."""
        if self._waiting:
            return self._waiting[0].head.path
        if self._unparsed:
            return path_of_request_line(bytes(self._unparsed))
        return self._parser.path

    def _close(self, *, linger_s: float = 0) -> None:
        """After all data is sent. With `linger_s`, first only the sending side, dropping what the client may
        still send."""
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
                # The client has gone, which the event loop hasn't noticed yet.
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
        """Headers, body and idle time share one timer, which requests don't reset: if it fires early, it's
        set again."""
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
