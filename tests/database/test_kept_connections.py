"""Tests the connections that the ledger keeps between its transactions."""

import asyncio
import select
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tollkeeper.core.errors import Unavailable
from tollkeeper.database import database as database_module
from tollkeeper.database.database import Database
from tollkeeper.database.round_trips import Statement
from tollkeeper.database.watched_connection import WatchedConnection

T = TypeVar("T")

_WHO = Statement("test_who", "SELECT pg_backend_pid()")
_SETTINGS = Statement(
    "test_settings",
    "SELECT current_setting('enable_hashjoin'), current_setting('plan_cache_mode')",
)
_FAIL = Statement("test_fail", "SELECT 1 / %s::integer")


@pytest.fixture
async def database(conninfo: str) -> AsyncIterator[Database]:
    made = Database(conninfo, pool_size=6, pool_timeout_s=20, statement_timeout_s=20)
    await made.open()
    yield made
    await made.close()


async def _backend(database: Database) -> int:
    async with database.round_trips() as trips:
        [[(found,)]] = await trips.run(_WHO.bind())
    assert isinstance(found, int)
    return found


async def test_the_next_transaction_has_the_same_connection(database: Database) -> None:
    first = await _backend(database)
    # The pool hands out its connections in turn, so it would give another connection.
    async with database.autocommit():
        assert await _backend(database) == first
    assert await _backend(database) == first


async def test_only_other_statements_are_planned_for_the_size_of_tables(database: Database) -> None:
    for _ in range(2):
        async with database.round_trips() as trips:
            [[(kept,)], settings] = await trips.run(_WHO.bind(), _SETTINGS.bind())
        assert settings == [("off", "force_generic_plan")]
        await database._kept.release()
        # The pool hands out its connections in turn, so one of these is the one of the ledger.
        backends = set()
        for _ in range(6):
            async with database.autocommit() as connection:
                cursor = await connection.execute(_SETTINGS.sql)
                assert await cursor.fetchall() == [("on", "auto")]
                cursor = await connection.execute(_WHO.sql)
                backends |= {row[0] for row in await cursor.fetchall()}
        assert kept in backends


async def test_transactions_at_the_same_time_have_connections_of_their_own(
    database: Database,
) -> None:
    async with database.round_trips() as one, database.round_trips() as other:
        [[(first,)]] = await one.run(_WHO.bind())
        [[(second,)]] = await other.run(_WHO.bind())
    assert first != second


async def test_only_a_part_of_the_pool_is_kept(database: Database) -> None:
    async with database.round_trips(), database.round_trips(), database.round_trips():
        pass
    assert len(database._kept) == 2
    # The pool's metric counts kept, idle connections as available.
    in_the_pool = database._pool.get_stats()["pool_available"]
    assert database.statistics()["pool_available"] == in_the_pool + 2


async def test_a_connection_after_a_refused_statement_is_usable(database: Database) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with database.round_trips() as trips:
            await trips.begin(_FAIL.bind(0))
    assert await _backend(database)


async def test_an_old_connection_goes_back_to_the_pool(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_KEPT_S_MAX", 0.0)
    await _backend(database)
    assert len(database._kept) == 0


async def test_connections_that_the_server_closed_while_idle_are_not_used(
    database: Database, conninfo: str
) -> None:
    backends = await _backends_of_all_connections(database)
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        for backend in backends:
            await connection.execute("SELECT pg_terminate_backend(%s, 20000)", (backend,))
    assert not backends & await _backends_of_all_connections(database)


async def test_connections_that_the_gateway_closed_are_not_used(database: Database) -> None:
    """A fenced connection may be closed when its last answer has already arrived."""
    await _backend(database)  # prepares the statement
    async with database.round_trips() as trips:
        [[(backend,)]] = await _read_after_hanging_up(trips.connection, trips.run(_WHO.bind()))
    backends = {backend}
    async with database.autocommit() as connection:
        assert isinstance(connection, WatchedConnection)
        cursor = await _read_after_hanging_up(connection, connection.execute(_WHO.sql))
        backends |= {row[0] for row in await cursor.fetchall()}
    assert len(backends) == 2
    assert not backends & await _backends_of_all_connections(database)


async def test_a_message_of_the_server_does_not_end_an_idle_connection(database: Database) -> None:
    backend = await _backend(database)
    [connection] = database._kept._idle
    assert not connection.is_lost()
    await connection.execute("LISTEN test_kept_connections")
    async with database.autocommit() as other:
        await other.execute("NOTIFY test_kept_connections")
    select.select([connection.pgconn.socket], [], [], 20)
    assert await _backend(database) == backend


async def _backends_of_all_connections(database: Database) -> set[int]:
    """Uses two connections that the ledger retains, and four of the pool, at the same time."""
    async with AsyncExitStack() as stack:
        trips = [await stack.enter_async_context(database.round_trips()) for _ in range(2)]
        backends = {(await each.run(_WHO.bind()))[0][0][0] for each in trips}
        for _ in range(4):
            connection = await stack.enter_async_context(database.autocommit())
            cursor = await connection.execute(_WHO.sql)
            backends |= {row[0] for row in await cursor.fetchall()}
    assert len(backends) == 6
    return backends


async def _read_after_hanging_up(
    connection: WatchedConnection, statement: Coroutine[Any, Any, T]
) -> T:
    reading = await _sent(connection, statement)
    select.select([connection.pgconn.socket], [], [], 20)
    connection.hang_up()
    return await reading


async def _sent(
    connection: psycopg.AsyncConnection[Any], statement: Coroutine[Any, Any, T]
) -> asyncio.Task[T]:
    """Starts the statement, and returns its task as soon as the statement is sent."""
    reading = asyncio.create_task(statement)
    while connection.pgconn.transaction_status != TransactionStatus.ACTIVE:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0)
    return reading


async def test_an_answer_that_arrived_while_the_process_was_paused_is_read(
    conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_ANSWER_SLACK_S", 0.2)
    database = Database(conninfo, pool_size=1, pool_timeout_s=20, statement_timeout_s=0.4)
    await database.open()
    try:
        async with database.autocommit() as connection:
            reading = await _sent(connection, connection.execute("SELECT pg_sleep(0.1)"))
            time.sleep(1)  # noqa: ASYNC251 - pauses the whole process
            await reading
            await connection.execute(_WHO.sql)
    finally:
        await database.close()


async def test_a_closed_database_keeps_nothing(conninfo: str) -> None:
    database = Database(conninfo, pool_size=6, pool_timeout_s=20, statement_timeout_s=20)
    await database.open()
    async with database.round_trips() as trips:
        await trips.run(_WHO.bind())
        closing = asyncio.create_task(database.close())
        await asyncio.sleep(0)
    await closing
    assert len(database._kept) == 0
    with pytest.raises(Unavailable):
        await _backend(database)
