"""The pool of connections, transactions, and the translation of the driver's errors into ours."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType

import psycopg
from psycopg import errors as pg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from tollkeeper.domain.errors import Unavailable
from tollkeeper.fair_queue import FairSlots, QueueFull
from tollkeeper.storage.fence import Fence, FencedConnection
from tollkeeper.storage.kept_connections import KeptConnections
from tollkeeper.storage.reachability import (
    RETRY_AFTER_S,
    DatabaseUnreachable,
    Reachability,
    driver_reason,
)
from tollkeeper.storage.round_trips import Connection, PlansDropped, RoundTrips
from tollkeeper.storage.sessions import session_settings
from tollkeeper.storage.watched_connection import WatchedConnection

__all__ = ["Connection", "Contention", "Database", "RoundTrips", "operator_reason"]

# How long the pool tries to connect again by itself. The pauses between its attempts get longer, and
# after this time the next request starts another attempt at once.
_RECONNECT_TIMEOUT_S = 2
# How long one statement may run.
STATEMENT_TIMEOUT_S = 10.0
# How long a request waits for a connection before it is answered 503. Longer than a transaction takes
# under load, and shorter than the time after which clients give up.
POOL_TIMEOUT_S = 5.0
# The server ends a statement by itself at its timeout; so much later it is taken for silent.
_ANSWER_SLACK_S = 2.0
# How many callers may wait for a connection; more are refused at once.
_WAITING_MAX = 2000
# The part of the pool that the ledger may keep between its transactions.
_KEPT_PART = 3
# The part of the pool that requests of organizations may use together, and the part of that which
# one organization may use. The rest is for the gateway's own work, on which all organizations depend.
_ORGANIZATIONS_PART = 2
_ONE_ORGANIZATION_PART = 2
# The part of those who may wait that may wait for one organization.
_WAITING_OF_ORGANIZATION_PART = 4

# The server cannot do this now: it is gone, read-only, corrupt, shutting down or out of a resource.
_SERVER_FAULTS = (
    pg.OperationalError,
    pg.InterfaceError,
    pg.ReadOnlySqlTransaction,
    pg.DataCorrupted,
    pg.IndexCorrupted,
)


class Contention(Unavailable):
    """Another transaction was in the way and nothing was written; another attempt may succeed."""

    def __init__(self) -> None:
        super().__init__("The database is busy; try again.", retry_after_s=RETRY_AFTER_S)


class Database:
    """Connections to one PostgreSQL. Safe to share between tasks of one event loop."""

    def __init__(
        self,
        conninfo: str,
        *,
        pool_size: int,
        pool_timeout_s: float = POOL_TIMEOUT_S,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
        seen_file: Path | None = None,
    ) -> None:
        """`seen_file` is where processes of this machine note the newest server."""
        self._session_settings = session_settings(statement_timeout_s).encode()
        self._answer_within_s = statement_timeout_s + _ANSWER_SLACK_S
        self.reachability = Reachability(conninfo)
        self._fence = Fence(conninfo, seen_file)
        self._fence.on_closed = self._discard_dead_connections
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            connection_class=FencedConnection,
            kwargs={
                "autocommit": True,
                "fence": self._fence,
                "reachability": self.reachability,
            },
            min_size=min(2, pool_size),
            max_size=pool_size,
            max_waiting=_WAITING_MAX,
            timeout=pool_timeout_s,
            reconnect_timeout=_RECONNECT_TIMEOUT_S,
            configure=self._configure,
            open=False,
        )
        self._kept = KeptConnections(self._pool, self.reachability, pool_size // _KEPT_PART)
        self._turn_timeout_s = pool_timeout_s
        slots = max(1, pool_size // _ORGANIZATIONS_PART)
        self._turns = FairSlots(
            slots,
            owner_max=max(1, slots // _ONE_ORGANIZATION_PART),
            waiting_max=_WAITING_MAX,
            waiting_owner_max=_WAITING_MAX // _WAITING_OF_ORGANIZATION_PART,
        )
        self._checking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        await self._fence.close()
        await self._kept.close()
        await self._pool.close()

    async def close_old_connections(self) -> None:
        """Asks all servers which one is the newest, and closes connections to the others."""
        with contextlib.suppress(psycopg.Error):  # the next connection reports it
            await self._fence.survey()

    @asynccontextmanager
    async def reading(self, organization: Hashable | None = None) -> AsyncIterator[Connection]:
        """A connection on which each statement is a transaction of its own.

        With `organization`, for a request of one of its callers: organizations take turns, and none
        can use up the pool. Without, for work of the gateway or of an operator."""
        if organization is None:
            async with self._connection() as connection:
                yield connection
            return
        await self._wait_for_turn(organization)
        try:
            async with self._connection() as connection:
                yield connection
        finally:
            self._turns.release(organization)

    async def _wait_for_turn(self, organization: Hashable) -> None:
        until = asyncio.get_running_loop().time() + self._turn_timeout_s
        try:
            await self._turns.acquire(organization, until=until)
        except (QueueFull, TimeoutError):
            raise _pool_exhausted() from None

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        try:
            async with self.reachability.waiting():
                connection = await self._pool.getconn()
            try:
                async with connection:
                    yield connection
                self.reachability.answered()
            finally:
                await self._pool.putconn(connection)
        except Exception as exc:
            if (own := self._translated(exc)) is exc:
                raise
            raise own from exc

    @asynccontextmanager
    async def snapshot(self, organization: Hashable | None = None) -> AsyncIterator[Connection]:
        """A connection whose statements all see the database as of the same moment."""
        async with self.transaction(organization) as connection:
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield connection

    @asynccontextmanager
    async def transaction(self, organization: Hashable | None = None) -> AsyncIterator[Connection]:
        """A transaction: commits when the block ends, rolls back when it raises. `reading` says what
        `organization` is for."""
        async with self.reading(organization) as connection, connection.transaction():
            yield connection

    def round_trips(self) -> AbstractAsyncContextManager[RoundTrips]:
        """A transaction of one or two round trips; rolled back where the block raises. For what
        writes one batch after the other: its connection is kept for the next one."""
        return _RoundTripsBlock(self)

    def statistics(self) -> dict[str, int]:
        """The pool's statistics. Connections that are kept and not in use count as available."""
        found = self._pool.get_stats()
        found["pool_available"] = found.get("pool_available", 0) + len(self._kept)
        return found

    async def _configure(self, connection: Connection) -> None:
        assert isinstance(connection, WatchedConnection)
        connection.answer_within_s = self._answer_within_s
        connection.adapters.register_loader("numeric", _PicousdLoader)
        await connection.execute(self._session_settings)

    def _translated(self, error: Exception) -> Exception:
        """Our error for one of the driver or of the pool; any other error as it is."""
        if isinstance(error, (PoolTimeout, TooManyRequests, PoolClosed)):
            return _pool_exhausted()
        if isinstance(error, (pg.DeadlockDetected, pg.SerializationFailure, PlansDropped)):
            return Contention()
        if isinstance(error, _SERVER_FAULTS):
            self._discard_dead_connections()
            return _database_unavailable()
        return error

    def _discard_dead_connections(self) -> None:
        """Checks all idle connections at once. After a restart of the server all of them are dead,
        and without this each would cost another caller its request."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_connections())

    async def _check_connections(self) -> None:
        await self._kept.release()
        await self._pool.check()


class _RoundTripsBlock(AbstractAsyncContextManager[RoundTrips]):
    """`Database.round_trips`. A class of its own is several times as fast as generators in each
    other, and this runs for every batch of the ledger."""

    __slots__ = ("_connection", "_database")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection

    async def __aenter__(self) -> RoundTrips:
        try:
            self._connection = await self._database._kept.take()
        except Exception as exc:
            if (own := self._database._translated(exc)) is exc:
                raise
            raise own from exc
        return RoundTrips(self._connection)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        connection, database = self._connection, self._database
        try:
            try:
                if exc is not None and not connection.closed:
                    await connection.rollback()
            finally:
                await database._kept.give_back(connection)
        except Exception as failed:
            if (own := database._translated(failed)) is failed:
                raise
            raise own from failed
        if isinstance(exc, Exception):
            own = database._translated(exc)
            if own is not exc:
                raise own from exc
        else:
            database.reachability.answered()


class _PicousdLoader(Loader):
    """Numeric columns of ours have no fraction: they are read as exact integers."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))


def operator_reason(error: BaseException) -> str:
    """What the server or the driver said about an error, for operators: it may name hosts and files of
    the server, so clients get the error's own message."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, DatabaseUnreachable):
            return found.detail
        if isinstance(found, _SERVER_FAULTS):
            return found.diag.message_primary or driver_reason(found)
        found = found.__cause__
    return str(error)


def _pool_exhausted() -> Unavailable:
    return Unavailable("The database is busy; try again.", retry_after_s=RETRY_AFTER_S)


def _database_unavailable() -> Unavailable:
    return Unavailable("The database is unavailable; try again.", retry_after_s=RETRY_AFTER_S)
