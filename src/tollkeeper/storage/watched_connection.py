"""Closes a database connection if the server does not answer.

PostgreSQL itself ends a statement that takes too long, but not if the server is frozen or the
network is down. The operating system closes a connection only if the server's machine does not
respond, so without this module a call could wait for a frozen server without limit.
"""

import asyncio
import contextlib
import math
import os
import select
import socket
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import pq
from psycopg.abc import RV, PQGen, Transformer
from psycopg.rows import TupleRow


@dataclass(slots=True)
class PreparedStatements:
    """Contains the prepared statements of one connection, with their names on the server. Each name
    contains a generation number. After the server has dropped some statements, the next generation
    begins, because other statements with the old names may still exist."""

    generation: int = 0
    # Statements without a name are not prepared.
    names: dict[str, bytes] = field(default_factory=lambda: {"": b""})
    # The converters for a statement's rows, created from the first result of the statement.
    transformers: dict[str, Transformer] = field(default_factory=dict)

    def forget(self) -> None:
        self.generation += 1
        self.names = {"": b""}
        self.transformers.clear()


class WatchedConnection(psycopg.AsyncConnection[TupleRow]):
    # The time after which the connection is closed if the server has not answered. For connections
    # of the pool, the time is longer than the server's statement timeout.
    answer_within_s: float = math.inf
    # True if only the server limits the time of statements in the current transaction.
    allows_long_statements: bool = False
    # Whether the session's planner settings are those for statements that stay prepared.
    prefers_index_lookups: bool = False
    # The time until which the ledger may retain the connection between its transactions.
    kept_until: float = 0.0
    _watch: asyncio.TimerHandle

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prepared = PreparedStatements()

    async def wait(
        self,
        gen: PQGen[RV],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109 - the driver's parameter
    ) -> RV:
        """Limits the time of every wait for the server. The driver calls this method for each
        wait."""
        if self.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            self.allows_long_statements = False
        if self.allows_long_statements or self.answer_within_s == math.inf:
            return await super().wait(gen, interval, timeout)
        self.start_watch()
        try:
            return await super().wait(gen, interval, timeout)
        finally:
            self.stop_watch()

    def start_watch(self) -> None:
        """Limits the time until `stop_watch` is called. After this time, closes the connection, so that
        the running statement fails."""
        # Half the time passes twice. If the process was paused, for example because its machine was
        # suspended, it still has half the time to read the answer.
        self._watch = asyncio.get_running_loop().call_later(
            self.answer_within_s / 2, self._watch_again
        )

    def _watch_again(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(self.answer_within_s / 2, self.hang_up)

    def stop_watch(self) -> None:
        self._watch.cancel()

    def hang_up(self) -> None:
        """Closes the connection at once, even during a statement."""
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.pgconn.socket)) as shared,
        ):
            shared.shutdown(socket.SHUT_RDWR)

    def is_lost(self) -> bool:
        """Tells whether this idle connection is closed. The server may have closed it, for example
        because the server was restarted, or `hang_up` has closed it. Does not wait for the server: if
        there is anything to read on an idle connection, it is usually the end of the connection."""
        try:
            poll = select.poll()
            poll.register(self.pgconn.socket, select.POLLIN)
            while poll.poll(0):
                self.pgconn.consume_input()
        except psycopg.OperationalError:
            return True
        return False


async def allow_long_statements(
    connection: psycopg.AsyncConnection[TupleRow], *, minutes: int
) -> None:
    """Allows each statement of the current transaction to take this many minutes."""
    await connection.execute(f"SET LOCAL statement_timeout TO '{minutes}min'".encode())
    if isinstance(connection, WatchedConnection):
        connection.allows_long_statements = True
