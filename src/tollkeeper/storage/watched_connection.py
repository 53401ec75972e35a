"""Closes a connection if the server does not answer.

PostgreSQL itself ends a statement that takes too long, but not if the server is frozen or the
network is down. A call would then wait until the operating system closes the connection, which
takes a quarter of an hour.
"""

import asyncio
import contextlib
import math
import os
import socket
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import pq
from psycopg.abc import RV, PQGen, Transformer
from psycopg.rows import TupleRow


@dataclass(slots=True)
class PreparedStatements:
    """Holds the prepared statements of one connection, with their names on the server. A name
    contains a generation number: after a drop, some statements may still exist, so no name is used
    again."""

    generation: int = 0
    names: dict[str, bytes] = field(default_factory=dict)
    # Converters of a statement's rows, created from its first result.
    transformers: dict[str, Transformer] = field(default_factory=dict)

    def forget(self) -> None:
        self.generation += 1
        self.names.clear()
        self.transformers.clear()


class WatchedConnection(psycopg.AsyncConnection[TupleRow]):
    # Longer than the server's statement timeout.
    answer_within_s: float = math.inf
    # Whether this transaction's statements may take as long as the server allows.
    patient: bool = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prepared = PreparedStatements()

    async def wait(
        self,
        gen: PQGen[RV],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109 - the driver's parameter
    ) -> RV:
        """Limits every wait of the driver for the server."""
        watchdog = self.start_watch()
        try:
            return await super().wait(gen, interval, timeout)
        finally:
            if watchdog is not None:
                watchdog.cancel()

    def start_watch(self) -> asyncio.TimerHandle | None:
        """Starts a timer that closes the connection, so that the statement fails. It is cancelled
        when the answer arrives in time."""
        if self.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            self.patient = False
        if self.patient or self.answer_within_s == math.inf:
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(self.answer_within_s, self.hang_up)

    def hang_up(self) -> None:
        """Closes the connection at once, even during a statement."""
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.pgconn.socket)) as shared,
        ):
            shared.shutdown(socket.SHUT_RDWR)


async def allow_long_statements(
    connection: psycopg.AsyncConnection[TupleRow], *, minutes: int
) -> None:
    """Allows long statements until the end of the transaction."""
    await connection.execute(f"SET LOCAL statement_timeout TO '{minutes}min'".encode())
    if isinstance(connection, WatchedConnection):
        connection.patient = True
