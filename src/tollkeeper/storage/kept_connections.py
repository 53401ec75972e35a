"""Retains a few connections between transactions, instead of returning them to the pool.

The ledger writes one batch after the other. In a busy process, taking a connection from the pool
and returning it would take a tenth of the time of a batch.
"""

import asyncio

from psycopg import pq
from psycopg_pool import AsyncConnectionPool

from tollkeeper.storage.reachability import Reachability
from tollkeeper.storage.round_trips import Connection

# The maximum time that a connection is retained. Then the connection must be returned to the pool,
# because the pool replaces an old connection only when the connection is returned.
_KEPT_S_MAX = 60.0


class KeptConnections:
    def __init__(
        self, pool: AsyncConnectionPool[Connection], reachability: Reachability, kept_max: int
    ) -> None:
        self._pool = pool
        self._reachability = reachability
        self._kept_max = kept_max
        # Idle retained connections, each with the time until which it may be retained. The most
        # recently used connection is the last.
        self._idle: list[tuple[Connection, float]] = []
        # For each retained connection that is in use: the time until which it may be retained.
        self._kept_until: dict[Connection, float] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._idle)

    async def take(self) -> Connection:
        """Returns a connection for exclusive use. Raises the errors of the pool, or
        `DatabaseUnreachable`."""
        if self._idle:
            connection, until = self._idle.pop()
            self._kept_until[connection] = until
            return connection
        async with self._reachability.waiting():
            return await self._pool.getconn()

    async def give_back(self, connection: Connection) -> None:
        """Takes back a connection whose transaction has ended or failed: retains it or returns it
        to the pool."""
        now = asyncio.get_running_loop().time()
        until = self._kept_until.pop(connection, now + _KEPT_S_MAX)
        is_idle = connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if is_idle and now < until and len(self._idle) < self._kept_max and not self._is_closed:
            self._idle.append((connection, until))
        else:
            await self._pool.putconn(connection)

    async def release(self) -> None:
        """Returns all idle connections to the pool."""
        while self._idle:
            connection, _ = self._idle.pop()
            await self._pool.putconn(connection)

    async def close(self) -> None:
        """Returns all idle connections to the pool, and retains no connection from now on."""
        self._is_closed = True
        await self.release()
