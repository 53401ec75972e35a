"""Manages the connections to one replica (one address of a backend): opens connections, keeps idle
connections for reuse, and closes connections that were idle for too long."""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from urllib.parse import urlsplit

from tollkeeper.core.runtime.fair_queue import FairSlots, QueueFull, share
from tollkeeper.providers.config import BackendConfig, host_and_port
from tollkeeper.providers.transport.http1 import (
    ConnectFailed,
    Connection,
    ConnectionsExhausted,
    DeadlinePassed,
)

_CLOSE_TIMEOUT_S = 1.0
# Some servers announce keep-alive but close the connection right after a stream. A request that is
# sent on such a connection fails, and the gateway cannot know whether the backend ran the request.
# So a connection is not reused for this long after a stream: a close by the server arrives within
# this time.
_COOLDOWN_S = 0.1


@dataclass(frozen=True, slots=True)
class PoolLimits:
    connections_max: int
    idle_connections_max: int
    keep_alive_s: float
    connect_timeout_s: float
    # See `Connection.mark_progress`.
    idle_timeout_s: float
    # The maximum number of calls that wait while all connections are in use.
    waiting_max: int


class ConnectionPool:
    """Lends connections to calls, and reuses the most recently used connection first, so that
    surplus connections stay idle and are closed after their keep-alive time. If all connections are
    in use, waiting organizations are served in turn. No organization may use all connections."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, limits: PoolLimits
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._limits = limits
        # Connections that can be used now. The connection with the longest idle time comes first.
        self._idle: deque[Connection] = deque()
        # Connections that cannot be used yet, because their last stream ended less than `_COOLDOWN_S`
        # ago. The order is the same as in `_idle`.
        self._cooling_down: deque[Connection] = deque()
        # The maximum number of connections in both queues. 0 after the pool was closed.
        self._idle_max = limits.idle_connections_max
        self._connections: set[Connection] = set()
        self._connecting = 0
        self._slots = FairSlots(
            limits.connections_max,
            owner_max=share(limits.connections_max),
            waiting_max=limits.waiting_max,
            waiting_owner_max=max(1, limits.waiting_max // 4),
        )
        # The timer that closes connections which were idle for too long. It runs while a connection is
        # open.
        self._sweep: asyncio.TimerHandle | None = None
        # Set when the last connection is closed. None until the pool closes.
        self._emptied: asyncio.Event | None = None

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    @property
    def waiting(self) -> int:
        """Returns the number of calls that wait for a connection."""
        return self._slots.waiting

    @property
    def in_flight(self) -> int:
        """Returns the number of calls that use a connection or wait for one."""
        return self._slots.taken + self._slots.waiting

    async def acquire(self, *, deadline: float, organization: Hashable) -> Connection:
        """Returns an open connection. Waits for a free connection at most as long as the
        connect timeout. Raises ConnectFailed, ConnectionsExhausted or DeadlinePassed. In these cases, no
        part of the request was sent."""
        if not self._slots.take_free(organization):
            await self._wait_for_turn(organization, deadline)
        if self._cooling_down:
            self._take_cooled()
        # `_close_stale` has removed connections that were idle for too long: uvloop calls due timers
        # before it continues any task.
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                break
            self._drop(connection)
        else:
            try:
                connection = await self._open(deadline)
            except BaseException:
                self._slots.release(organization)
                raise
        connection.organization = organization
        return connection

    async def _wait_for_turn(self, organization: Hashable, deadline: float) -> None:
        connect_until = asyncio.get_running_loop().time() + self._limits.connect_timeout_s
        try:
            await self._slots.acquire(organization, until=min(deadline, connect_until))
        except QueueFull:
            raise ConnectionsExhausted("too many calls wait for a connection") from None
        except TimeoutError:
            if deadline <= connect_until:
                raise DeadlinePassed("the deadline passed before a connection was free") from None
            raise ConnectionsExhausted("every connection is in use") from None

    async def _open(self, deadline: float) -> Connection:
        if len(self._connections) + self._connecting >= self._limits.connections_max:
            self._make_room()
        self._connecting += 1
        try:
            return await self._connect(deadline)
        finally:
            self._connecting -= 1

    def _make_room(self) -> None:
        """Closes a connection that no call uses. There is one, because the call that opens a connection
        has a slot and there is one slot for each connection. The connection cools down, drains, or is
        closing."""
        if self._cooling_down:
            self._drop(self._cooling_down.popleft())
            return
        self._drop(next(connection for connection in self._connections if connection.is_ending))

    def _take_cooled(self) -> None:
        cooled_before = asyncio.get_running_loop().time() - _COOLDOWN_S
        while self._cooling_down and self._cooling_down[0].idle_since <= cooled_before:
            self._idle.append(self._cooling_down.popleft())

    def release(self, connection: Connection, *, after_stream: bool = False) -> None:
        """Ends the exchange on the connection. Keeps the connection for reuse only if the answer is
        complete. After a stream, the connection first reads the remaining bytes of the answer
        (see `Connection.drain`)."""
        self._slots.release(connection.organization)
        if after_stream:
            connection.drain()
        elif connection.finish() and (
            len(self._connections) <= self._idle_max or self._may_keep_one()
        ):
            self._idle.append(connection)
        else:
            connection.abort()

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.clear()
        self._cooling_down.clear()
        self._idle_max = 0
        if not self._connections:
            return
        self._emptied = asyncio.Event()
        for connection in tuple(self._connections):
            connection.abort()
        # Waits until all connections are closed. If that takes longer than the timeout, the event
        # loop closes the remaining connections later.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._emptied.wait()

    async def _connect(self, deadline: float) -> Connection:
        loop = asyncio.get_running_loop()
        connect_until = min(deadline, loop.time() + self._limits.connect_timeout_s)
        try:
            async with asyncio.timeout_at(connect_until):
                _, connection = await loop.create_connection(
                    lambda: Connection(
                        self._remove_lost, self._cool_down, self._limits.idle_timeout_s
                    ),
                    self._host,
                    self._port,
                )
                if self._tls is not None:
                    await connection.start_tls(self._tls, self._host)
        except TimeoutError as error:
            if connect_until >= deadline:
                raise DeadlinePassed("the deadline passed while connecting") from error
            raise ConnectFailed("connecting took too long") from error
        except OSError as error:
            raise ConnectFailed("no connection") from error
        if connection.transport.is_closing():
            raise ConnectFailed("the connection was closed at once")
        self._connections.add(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(self._limits.keep_alive_s, self._close_stale)
        return connection

    def _drop(self, connection: Connection) -> None:
        self._connections.discard(connection)
        connection.abort()

    def _cool_down(self, connection: Connection) -> None:
        if connection.finish() and self._may_keep_one():
            self._cooling_down.append(connection)
        else:
            connection.abort()

    def _may_keep_one(self) -> bool:
        return len(self._idle) + len(self._cooling_down) < self._idle_max

    def _close_stale(self) -> None:
        self._sweep = None
        loop = asyncio.get_running_loop()
        oldest = now = loop.time()
        for queue in (self._idle, self._cooling_down):
            for connection in tuple(queue):
                if connection.idle_since <= now - self._limits.keep_alive_s:
                    connection.abort()
                else:
                    oldest = min(oldest, connection.idle_since)
        if self._connections:
            self._sweep = loop.call_at(oldest + self._limits.keep_alive_s, self._close_stale)

    def _remove_lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        for queue in (self._idle, self._cooling_down):
            if connection in queue:
                queue.remove(connection)
        if self._emptied is not None and not self._connections:
            self._emptied.set()


def open_pool(url: str, config: BackendConfig) -> ConnectionPool:
    """Creates the pool for the address of one replica. Certificates are always verified: no setting
    disables the verification. Raises ValueError if the file of trusted certificates cannot be
    used."""
    host, port = host_and_port(url)
    tls = _tls(config.tls_ca_file) if urlsplit(url).scheme == "https" else None
    return ConnectionPool(
        host,
        port,
        tls,
        PoolLimits(
            connections_max=config.connections_max,
            idle_connections_max=config.idle_connections_max,
            keep_alive_s=config.keep_alive_s,
            connect_timeout_s=config.connect_timeout_s,
            idle_timeout_s=config.idle_timeout_s,
            waiting_max=config.connections_waiting_max,
        ),
    )


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as exc:
        reason = "it has no valid certificate" if isinstance(exc, ssl.SSLError) else exc.strerror
        raise ValueError(f"tls_ca_file: {ca_file} cannot be used: {reason}.") from exc
    context.set_alpn_protocols(["http/1.1"])
    return context
