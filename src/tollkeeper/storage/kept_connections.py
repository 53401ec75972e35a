"""Retains a few connections between transactions, instead of returning them to the pool.

The ledger writes one batch after the other. In a busy process, taking a connection from the pool
and returning it would take a tenth of the time of a batch.
"""

import asyncio

from psycopg import pq
from psycopg_pool import AsyncConnectionPool

from tollkeeper.storage.reachability import Reachability
from tollkeeper.storage.watched_connection import WatchedConnection

# The maximum time that a connection is retained. Then the connection must be returned to the pool,
# because the pool replaces an old connection only when the connection is returned.
_KEPT_S_MAX = 60.0
_IDLE = pq.TransactionStatus.IDLE


class KeptConnections:
    def __init__(
        self,
        pool: AsyncConnectionPool[WatchedConnection],
        reachability: Reachability,
        kept_max: int,
    ) -> None:
        self._pool = pool
        self._reachability = reachability
        self._kept_max = kept_max
        # Idle retained connections. The most recently used connection is the last.
        self._idle: list[WatchedConnection] = []

    def __len__(self) -> int:
        return len(self._idle)

    async def take(self) -> WatchedConnection:
        """Returns a connection for exclusive use. Raises the errors of the pool, or
        `DatabaseUnreachable`."""
        if self._idle:
            return self._idle.pop()
        async with self._reachability.waiting():
            connection = await self._pool.getconn()
        connection.kept_until = asyncio.get_running_loop().time() + _KEPT_S_MAX
        return connection

    async def give_back(self, connection: WatchedConnection) -> None:
        """Takes back a connection whose transaction has ended or failed: retains it or returns it
        to the pool."""
        is_idle = connection.pgconn.transaction_status == _IDLE
        is_old = asyncio.get_running_loop().time() >= connection.kept_until
        if is_idle and not is_old and len(self._idle) < self._kept_max:
            self._idle.append(connection)
        else:
            await self._pool.putconn(connection)

    async def release(self) -> None:
        """Returns all idle connections to the pool."""
        while self._idle:
            await self._pool.putconn(self._idle.pop())

    async def close(self) -> None:
        """Returns all idle connections to the pool, and retains no connection from now on."""
        self._kept_max = 0
        await self.release()
