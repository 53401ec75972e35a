"""A connection that is given up when the server does not answer.

PostgreSQL itself ends a statement that takes too long. It cannot where it is frozen, and nobody
learns of it where the network loses the answer. A call would then wait until the system gives the
connection up, which takes a quarter of an hour.
"""

import asyncio
import contextlib
import math
import os
import socket

import psycopg
from psycopg import pq
from psycopg.abc import RV, PQGen
from psycopg.rows import TupleRow


class WatchedConnection(psycopg.AsyncConnection[TupleRow]):
    # Longer than the server lets a statement run.
    answer_within_s: float = math.inf
    # Whether the statements of this transaction may take as long as the server allows.
    patient: bool = False

    async def wait(
        self,
        gen: PQGen[RV],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109 - the driver's parameter
    ) -> RV:
        """The driver waits here for everything that it has asked the server for."""
        watchdog = self.start_watch()
        try:
            return await super().wait(gen, interval, timeout)
        finally:
            if watchdog is not None:
                watchdog.cancel()

    def start_watch(self) -> asyncio.TimerHandle | None:
        """Starts a timer that closes the connection, so that the statement fails. It is cancelled when the
        answer comes in time."""
        if self.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            self.patient = False
        if self.patient or self.answer_within_s == math.inf:
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(self.answer_within_s, self.hang_up)

    def hang_up(self) -> None:
        """Ends the connection at once, also amid a statement."""
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.pgconn.socket)) as shared,
        ):
            shared.shutdown(socket.SHUT_RDWR)


async def allow_long_statements(
    connection: psycopg.AsyncConnection[TupleRow], *, minutes: int
) -> None:
    """Until the end of the transaction."""
    await connection.execute(f"SET LOCAL statement_timeout TO '{minutes}min'".encode())
    if isinstance(connection, WatchedConnection):
        connection.patient = True
