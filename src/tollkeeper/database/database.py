"""The pool and transactions; turns the driver's errors into the gateway's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import psycopg
from psycopg import errors as pg
from psycopg import pq
from psycopg.types.numeric import IntLoader
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.fair_queue import FairSlots, QueueFull
from tollkeeper.database.fence import Fence, FencedConnection
from tollkeeper.database.planning import PLAN_NORMALLY, PREFER_INDEX_LOOKUPS
from tollkeeper.database.reachability import (
    RETRY_AFTER_S,
    DatabaseUnreachable,
    Reachability,
    driver_reason,
)
from tollkeeper.database.round_trips import Connection, PlansDropped, RoundTrips
from tollkeeper.database.sessions import session_settings
from tollkeeper.database.watched_connection import WatchedConnection

__all__ = [
    "ChangeInDoubt",
    "Connection",
    "Contention",
    "Database",
    "RoundTrips",
    "operator_reason",
]

T = TypeVar("T", bound=RoundTrips)

# The pool retries in the background this long, then gives up, and the next request tries again at
# once.
_RECONNECT_TIMEOUT_S = 2
STATEMENT_TIMEOUT_S = 10.0
# Waiting for a connection; then it's 503. Longer than a transaction under load, shorter than
# clients wait.
POOL_TIMEOUT_S = 5.0
# If the server hasn't cancelled a statement this long after its timeout, we close the connection.
_ANSWER_SLACK_S = 2.0
# For a connection. Others are rejected at once.
_WAITING_MAX = 2000
# The ledger may keep a third of the pool between transactions, for a limited time: the pool
# replaces an old connection only when it's returned.
_KEPT_DIVISOR = 3
_KEPT_S_MAX = 60.0
_IDLE = pq.TransactionStatus.IDLE
# All organizations together may use half of the pool, each half of that. The rest is for the
# gateway's own work, which all depend on.
_ORGANIZATIONS_DIVISOR = 2
_ONE_ORGANIZATION_DIVISOR = 2
# One organization may have a quarter of those who wait.
_WAITING_OF_ORGANIZATION_DIVISOR = 4

# Down, read-only, corrupt, shutting down or out of a resource.
_SERVER_FAULTS = (
    pg.OperationalError,
    pg.InterfaceError,
    pg.ReadOnlySqlTransaction,
    pg.DataCorrupted,
    pg.IndexCorrupted,
)


class Contention(Unavailable):
    """Raised if another transaction blocked this transaction, or if the server has dropped a prepared
    statement. Nothing was written, and another attempt may succeed."""

    def __init__(self) -> None:
        super().__init__("The database is busy; try again.", retry_after_s=RETRY_AFTER_S)


class ChangeInDoubt(Unavailable):
    """Raised if the answer to the commit of a transaction was lost. The changes may or may not be
    made."""

    def __init__(self) -> None:
        super().__init__(
            "The database has not confirmed the change. Check whether it was made before you "
            "repeat it.",
            retry_after_s=RETRY_AFTER_S,
        )


class Database:
    """Tasks of one event loop can share it."""

    def __init__(
        self,
        conninfo: str,
        *,
        pool_size: int,
        pool_timeout_s: float = POOL_TIMEOUT_S,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
        seen_file: Path | None = None,
    ) -> None:
        """`seen_file`: where this machine's processes record the newest server (see `fence`)."""
        self._session_settings = session_settings(statement_timeout_s).encode()
        self._answer_within_s = statement_timeout_s + _ANSWER_SLACK_S
        self.reachability = Reachability(conninfo)
        self._fence = Fence(conninfo, seen_file)
        self._pool: AsyncConnectionPool[WatchedConnection] = AsyncConnectionPool(
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
        self._kept = KeptConnections(self._pool, self.reachability, pool_size // _KEPT_DIVISOR)
        self._turn_timeout_s = pool_timeout_s
        slots = max(1, pool_size // _ORGANIZATIONS_DIVISOR)
        self._turns = FairSlots(
            slots,
            owner_max=max(1, slots // _ONE_ORGANIZATION_DIVISOR),
            waiting_max=_WAITING_MAX,
            waiting_owner_max=_WAITING_MAX // _WAITING_OF_ORGANIZATION_DIVISOR,
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
        """Those to older servers, once it's found out which is the newest."""
        with contextlib.suppress(psycopg.Error):  # the next connection attempt reports the error
            await self._fence.survey()

    @asynccontextmanager
    async def autocommit(self, organization: Hashable | None = None) -> AsyncIterator[Connection]:
        """Each statement is its own transaction. Pass `organization` for a client's request: they
        take turns, so none exhausts the pool. Leave it out for the gateway's or an operator's
        work."""
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
            connection = await _take(self._pool, self.reachability)
            try:
                async with connection:
                    if connection.prefers_index_lookups:
                        await connection.execute(PLAN_NORMALLY)
                        connection.prefers_index_lookups = False
                    yield connection
                self.reachability.answered()
            finally:
                await self._pool.putconn(connection)
        except Exception as exc:
            if (translated := self._translated(exc)) is exc:
                raise
            raise translated from exc

    @asynccontextmanager
    async def snapshot(self, organization: Hashable | None = None) -> AsyncIterator[Connection]:
        """Read-only; all statements see the same state. `organization` as in `autocommit`."""
        async with self.autocommit(organization) as connection, connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield connection

    @asynccontextmanager
    async def transaction(
        self, organization: Hashable | None = None, *, within: Connection | None = None
    ) -> AsyncIterator[Connection]:
        """Commits at the end, rolls back if the block raises. ChangeInDoubt if the commit's answer
        is lost. `within` joins that connection's open transaction. `organization` as in
        `autocommit`."""
        if within is not None:
            yield within
            return
        is_committing = False
        async with self.autocommit(organization) as connection:
            try:
                async with connection.transaction():
                    yield connection
                    is_committing = True
            except psycopg.OperationalError as exc:
                if is_committing and connection.closed:
                    self._discard_dead_connections()
                    raise ChangeInDoubt from exc
                raise

    def round_trips(self) -> AbstractAsyncContextManager[RoundTrips]:
        """In one or two network round trips; rolls back if the block raises. For successive
        batches: the connection is kept for the next. Prefers index lookups (see `planning`)."""
        return self.round_trips_of(RoundTrips)

    def round_trips_of(
        self, create: Callable[[WatchedConnection], T]
    ) -> AbstractAsyncContextManager[T]:
        """The same with what `create` makes of a connection."""
        return _RoundTripsBlock(self, create)

    def statistics(self) -> dict[str, int]:
        """What the ledger keeps idle for its next batch counts as available."""
        counts = self._pool.get_stats()
        counts["pool_available"] = counts.get("pool_available", 0) + len(self._kept)
        return counts

    async def _configure(self, connection: Connection) -> None:
        assert isinstance(connection, WatchedConnection)
        connection.answer_within_s = self._answer_within_s
        # Our numerics have no fractions, so read exact integers. Never return numeric[]: the driver
        # rejects elements of more than 20 characters.
        connection.adapters.register_loader("numeric", IntLoader)
        await connection.execute(self._session_settings)

    def _translated(self, error: Exception) -> Exception:
        """Other errors stay. After a fault of the server, also starts a check of all idle
        connections."""
        if isinstance(error, (PoolTimeout, TooManyRequests, PoolClosed)):
            return _pool_exhausted()
        if isinstance(error, (pg.DeadlockDetected, pg.SerializationFailure, PlansDropped)):
            return Contention()
        if isinstance(error, _SERVER_FAULTS):
            self._discard_dead_connections()
            return _database_unavailable()
        return error

    def _discard_dead_connections(self) -> None:
        """One task at a time. If a server hangs, its idle connections look usable, and each would
        make another request wait until its time limit."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_connections())

    async def _check_connections(self) -> None:
        await self._kept.release()
        await self._pool.check()


async def _take(
    pool: AsyncConnectionPool[WatchedConnection], reachability: Reachability
) -> WatchedConnection:
    """Replaces those that were lost while idle."""
    async with reachability.waiting():
        while (connection := await pool.getconn()).is_lost():
            await pool.putconn(connection)
        return connection


class KeptConnections:
    """The ledger writes batch after batch. Taking a connection from a busy pool and returning it
    would cost a tenth of a batch's time."""

    def __init__(
        self,
        pool: AsyncConnectionPool[WatchedConnection],
        reachability: Reachability,
        kept_max: int,
    ) -> None:
        self._pool = pool
        self._reachability = reachability
        self._kept_max = kept_max
        # The last used one is last.
        self._idle: list[WatchedConnection] = []

    def __len__(self) -> int:
        return len(self._idle)

    async def take(self) -> WatchedConnection:
        """For exclusive use; prefers index lookups. Raises the pool's and the driver's errors, or
        DatabaseUnreachable."""
        while self._idle:
            if not (connection := self._idle.pop()).is_lost():
                return connection
            await self._pool.putconn(connection)
        connection = await _take(self._pool, self._reachability)
        try:
            if not connection.prefers_index_lookups:
                await connection.execute(PREFER_INDEX_LOOKUPS)
                connection.prefers_index_lookups = True
        except BaseException:
            await self._pool.putconn(connection)
            raise
        connection.kept_until = asyncio.get_running_loop().time() + _KEPT_S_MAX
        return connection

    async def give_back(self, connection: WatchedConnection) -> None:
        """Keeps it or returns it to the pool, even if its transaction failed."""
        if (
            connection.pgconn.transaction_status == _IDLE
            and asyncio.get_running_loop().time() < connection.kept_until
            and len(self._idle) < self._kept_max
        ):
            self._idle.append(connection)
        else:
            await self._pool.putconn(connection)

    async def release(self) -> None:
        while self._idle:
            await self._pool.putconn(self._idle.pop())

    async def close(self) -> None:
        """Keeps none from now on."""
        self._kept_max = 0
        await self.release()


class _RoundTripsBlock(AbstractAsyncContextManager[T]):
    """A class, because that's several times faster than nested generator context managers, and runs
    for every batch."""

    __slots__ = ("_create", "_database", "_trips")

    def __init__(self, database: Database, create: Callable[[WatchedConnection], T]) -> None:
        self._database = database
        self._create = create
        self._trips: T

    async def __aenter__(self) -> T:
        try:
            self._trips = trips = self._create(await self._database._kept.take())
        except Exception as exc:
            if (translated := self._database._translated(exc)) is exc:
                raise
            raise translated from exc
        return trips

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        connection, database = self._trips.connection, self._database
        try:
            try:
                if exc is not None and not connection.closed:
                    await connection.rollback()
            finally:
                await database._kept.give_back(connection)
        except Exception as error:
            if (translated := self._translated(error)) is error:
                raise
            raise translated from error
        if isinstance(exc, Exception):
            translated = self._translated(exc)
            if translated is not exc:
                raise translated from exc
        else:
            database.reachability.answered()

    def _translated(self, error: Exception) -> Exception:
        return self._trips.translated(self._database._translated(error))


def operator_reason(error: BaseException) -> str:
    """For operators: it may name hosts and files. Clients get the gateway's own message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DatabaseUnreachable):
            return cause.detail
        if isinstance(cause, _SERVER_FAULTS):
            return driver_reason(cause)
        cause = cause.__cause__
    return str(error)


def _pool_exhausted() -> Unavailable:
    return Unavailable("The database is busy; try again.", retry_after_s=RETRY_AFTER_S)


def _database_unavailable() -> Unavailable:
    return Unavailable("The database is unavailable; try again.", retry_after_s=RETRY_AFTER_S)
