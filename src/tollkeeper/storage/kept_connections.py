"""Connections that are not given back to the pool between two transactions.

The ledger writes one batch after the other. Taking a connection from the pool and giving it back
costs a busy process a tenth of such a batch, so a few connections are kept at hand.
"""

import asyncio

from psycopg import pq
from psycopg_pool import AsyncConnectionPool

from tollkeeper.storage.reachability import Reachability
from tollkeeper.storage.round_trips import Connection

# The pool replaces connections that are old when they come back, so they have to come back.
_KEPT_S_MAX = 60.0


class KeptConnections:
    def __init__(
        self, pool: AsyncConnectionPool[Connection], reachability: Reachability, kept_max: int
    ) -> None:
        self._pool = pool
        self._reachability = reachability
        self._kept_max = kept_max
        # The connection that was used last is the last, with the time until which it may be kept.
        self._idle: list[tuple[Connection, float]] = []
        self._kept_until: dict[Connection, float] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._idle)

    async def take(self) -> Connection:
        """A connection that nobody else uses. Raises the errors of the pool, and `DatabaseUnreachable`."""
        if self._idle:
            connection, until = self._idle.pop()
            self._kept_until[connection] = until
            return connection
        async with self._reachability.waiting():
            return await self._pool.getconn()

    async def give_back(self, connection: Connection) -> None:
        """The transaction on the connection is over, or has failed."""
        now = asyncio.get_running_loop().time()
        until = self._kept_until.pop(connection, now + _KEPT_S_MAX)
        is_idle = connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if is_idle and now < until and len(self._idle) < self._kept_max and not self._is_closed:
            self._idle.append((connection, until))
        else:
            await self._pool.putconn(connection)

    async def release(self) -> None:
        """Gives everything that is not in use back to the pool."""
        while self._idle:
            connection, _ = self._idle.pop()
            await self._pool.putconn(connection)

    async def close(self) -> None:
        """Keeps nothing from now on."""
        self._is_closed = True
        await self.release()
