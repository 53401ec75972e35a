"""Keeps connections out of the pool between two transactions.

The ledger writes one batch after the other. Taking a connection from the pool and returning it
costs a busy process a tenth of such a batch, so a few connections are kept.
"""

import asyncio

from psycopg import pq
from psycopg_pool import AsyncConnectionPool

from tollkeeper.storage.reachability import Reachability
from tollkeeper.storage.round_trips import Connection

# The pool replaces old connections when they are returned, so kept ones must return after this
# time.
_KEPT_S_MAX = 60.0


class KeptConnections:
    def __init__(
        self, pool: AsyncConnectionPool[Connection], reachability: Reachability, kept_max: int
    ) -> None:
        self._pool = pool
        self._reachability = reachability
        self._kept_max = kept_max
        # The most recently used connection is the last, with the time until which it may be kept.
        self._idle: list[tuple[Connection, float]] = []
        self._kept_until: dict[Connection, float] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._idle)

    async def take(self) -> Connection:
        """Returns a connection for exclusive use. Raises the errors of the pool, and
        `DatabaseUnreachable`."""
        if self._idle:
            connection, until = self._idle.pop()
            self._kept_until[connection] = until
            return connection
        async with self._reachability.waiting():
            return await self._pool.getconn()

    async def give_back(self, connection: Connection) -> None:
        """Returns a connection after its transaction has ended or failed."""
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
        """Keeps no connections from now on."""
        self._is_closed = True
        await self.release()
