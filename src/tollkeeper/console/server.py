"""Runs the console's HTTP server. No other file of the console uses the server library.

The library has no deadline for a request's head and no limit on open connections, so strangers who send
nothing could keep others out. `_Door` accepts the connections and limits their number, and `_Connection` adds
the deadlines.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import structlog
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tollkeeper.core.runtime.connection_limit import ConnectionLimit, network_of
from tollkeeper.setup.settings import Settings

# The maximum number of open connections, if the process may open enough files.
CONNECTIONS_MAX = 512
# The head of a request, and a TLS handshake, must be complete after this time.
_HEAD_S = 10
# An idle connection is closed after this time.
_IDLE_S = 30
# A client that does not read its answer is disconnected after this time.
_WRITE_S = 60
# The time that open requests have to end after a stop signal.
_GRACE_S = 3
# The pause after a connection could not be accepted, for example because too many files are open.
_ACCEPT_AGAIN_S = 0.1
_log = structlog.get_logger("tollkeeper.console")


# Registers a function that is called when a signal asks the process to stop.
TakeSignals = Callable[[Callable[[], None]], None]


async def serve(
    app: Any,
    settings: Settings,
    listener: socket.socket,
    take_signals: TakeSignals,
    connections_max: int,
) -> None:
    """Serves the application on the listening socket until SIGTERM or SIGINT."""
    server = ConsoleServer(app, settings, connections_max)

    def stop() -> None:
        server.should_exit = True

    # uvicorn installs its own signal handlers only when it begins to serve, so it would miss an
    # earlier signal.
    take_signals(stop)
    await server.serve(sockets=[listener])


class ConsoleServer(uvicorn.Server):
    def __init__(self, app: Any, settings: Settings, connections_max: int) -> None:
        proxies = list(settings.console.trusted_proxies)
        behind_proxy = ProxyHeadersMiddleware(app, proxies)
        config = uvicorn.Config(
            behind_proxy if proxies else app,
            http=H11Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        super().__init__(config)
        tls = None
        if settings.console.tls_files:
            certificate, key = settings.console.tls_files
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(certificate, key)
        make = partial(_Connection, config=config, server_state=self.server_state, app_state={})
        self._door = _Door(make, tls, behind_proxy.trusted_hosts, connections_max)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        [listener] = sockets
        self._door.open(listener)
        self.servers = [cast("asyncio.Server", self._door)]
        self.started = True


class _Door:
    """Accepts connections one by one, and closes idle connections if there are too many."""

    def __init__(
        self,
        make: Callable[[], "_Connection"],
        tls: ssl.SSLContext | None,
        trusted_proxies: Any,
        connections_max: int,
    ) -> None:
        self._make = make
        self._tls = tls
        self._trusted_proxies = trusted_proxies
        self.limit: ConnectionLimit[_Connection] = ConnectionLimit(
            min(CONNECTIONS_MAX, connections_max), _Connection.close_if_idle, lambda _: False
        )
        self._accepting: asyncio.Task[None] | None = None

    def open(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener))

    # uvicorn calls these two methods when it stops.

    def close(self) -> None:
        assert self._accepting is not None
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        assert self._accepting is not None
        await asyncio.wait([self._accepting])

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listener)
            except OSError as exc:
                _log.warning("a connection was not accepted", reason=exc.strerror)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            connection = self._make()
            if self.limit.enter(connection, self._network(connection, peer[0])):
                connection.opening = asyncio.create_task(self._open(connection, accepted))
            else:
                accepted.close()
            # `sock_accept` may return at once, so a crowd could keep everything else waiting.
            await asyncio.sleep(0)

    def _network(self, connection: "_Connection", host: str) -> object:
        # All clients of a proxy have its address, so its connections don't count as one network's.
        return connection if host in self._trusted_proxies else network_of(host)

    async def _open(self, connection: "_Connection", accepted: socket.socket) -> None:
        loop, timeout_s = asyncio.get_running_loop(), None if self._tls is None else _HEAD_S
        connection.on_lost = partial(self.limit.leave, connection)
        is_open = False
        try:
            await loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
            is_open = True
        except OSError:
            pass  # The client has closed the connection, or its handshake has failed.
        finally:
            if not is_open:
                connection.on_lost()
                accepted.close()


class _Connection(H11Protocol):
    """Closes the connection if the client keeps the console waiting."""

    # Set before the connection is made.
    opening: asyncio.Task[None]
    on_lost: Callable[[], None]
    # The time until which the client has to send a complete head. It counts only while no request
    # is being answered.
    _deadline = 0.0
    _head_begun = True
    _deadline_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.time() + _HEAD_S
        self._check_deadline()

    def data_received(self, data: bytes) -> None:
        if self._is_idle and not self._head_begun:
            self._head_begun, self._deadline = True, self.loop.time() + _HEAD_S
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._head_begun, self._deadline = False, self.loop.time() + _IDLE_S
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_lost()
        for timer in (self._deadline_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(_WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    @property
    def _is_idle(self) -> bool:
        """Tells whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def close_if_idle(self) -> bool:
        transport: asyncio.Transport | None = self.transport
        if transport is None:
            self.opening.cancel()
            return True
        if not self._is_idle or transport.get_write_buffer_size():
            return False
        transport.abort()
        return True

    def _check_deadline(self) -> None:
        now = self.loop.time()
        if not self._is_idle:
            next_check = now + _HEAD_S
        elif now < self._deadline:
            next_check = self._deadline
        else:
            # A client that does not read has `_WRITE_S`.
            if self._write_timer is None:
                self.transport.abort()
            return
        self._deadline_timer = self.loop.call_at(next_check, self._check_deadline)
