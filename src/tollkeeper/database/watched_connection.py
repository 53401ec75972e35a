"""Closes a connection if the server doesn't answer. PostgreSQL ends slow statements, but not if
it's frozen or the network is down, and the operating system only notices a silent machine, so a
call could wait forever."""

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
    """One connection's, with their names on the server. A name has a generation number: once the
    server dropped some, the next begins, as others with old names may still exist."""

    generation: int = 0
    # Unnamed ones aren't prepared.
    names: dict[str, bytes] = field(default_factory=lambda: {"": b""})
    # Row converters, from the statement's first result.
    transformers: dict[str, Transformer] = field(default_factory=dict)

    def forget(self) -> None:
        self.generation += 1
        self.names = {"": b""}
        self.transformers.clear()


class WatchedConnection(psycopg.AsyncConnection[TupleRow]):
    # Then it's closed. In the pool, longer than the server's statement timeout.
    answer_within_s: float = math.inf
    # Only the server limits the current transaction's statements.
    allows_long_statements: bool = False
    # The planner settings for statements that stay prepared.
    prefers_index_lookups: bool = False
    # By the ledger, between its transactions.
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
        """The driver calls this for each wait for the server."""
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
        """Until `stop_watch`, or the connection is closed and the running statement fails."""
        # Half the time, twice: a process that was paused, as on a suspended machine, still has half
        # to read the answer.
        self._watch = asyncio.get_running_loop().call_later(
            self.answer_within_s / 2, self._watch_again
        )

    def _watch_again(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(self.answer_within_s / 2, self.hang_up)

    def stop_watch(self) -> None:
        self._watch.cancel()

    def hang_up(self) -> None:
        """At once, even during a statement."""
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.pgconn.socket)) as shared,
        ):
            shared.shutdown(socket.SHUT_RDWR)

    def is_lost(self) -> bool:
        """While idle, by the server (say, a restart) or `hang_up`. Doesn't wait: anything to read
        on an idle connection is usually its end."""
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
    """For each statement of the current transaction."""
    await connection.execute(f"SET LOCAL statement_timeout TO '{minutes}min'".encode())
    if isinstance(connection, WatchedConnection):
        connection.allows_long_statements = True
