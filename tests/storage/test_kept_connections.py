"""Tests the connections that the ledger keeps between its transactions."""

import asyncio
import select
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tests.support.backend_calls import until
from tollkeeper.domain.errors import Unavailable
from tollkeeper.storage import database as database_module
from tollkeeper.storage.database import Database
from tollkeeper.storage.round_trips import Statement
from tollkeeper.storage.watched_connection import WatchedConnection

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
    async with database.reading():
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
            async with database.reading() as connection:
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


async def test_dead_connections_are_not_kept(database: Database, conninfo: str) -> None:
    async with database.round_trips() as one, database.round_trips() as other:
        backends = [(await trips.run(_WHO.bind()))[0][0][0] for trips in (one, other)]
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        for backend in backends:
            await connection.execute("SELECT pg_terminate_backend(%s, 20000)", (backend,))
    # One transaction fails, and then all other kept connections are discarded too.
    with pytest.raises(Unavailable):
        await _backend(database)
    await until(lambda: not len(database._kept))
    assert await _backend(database) not in backends
    assert await _backend(database) not in backends


async def test_a_connection_that_was_closed_before_its_answer_was_read_is_discarded(
    database: Database,
) -> None:
    """After a pause of the process, for example on a suspended machine, the time limit of a statement
    has passed and its answer has arrived."""
    await _backend(database)
    async with database.round_trips() as trips:
        await _read_after_hanging_up(trips.connection, trips.run(_WHO.bind()))
    async with database.reading() as connection:
        assert isinstance(connection, WatchedConnection)
        await _read_after_hanging_up(connection, connection.execute(_WHO.sql))
    for _ in range(6):
        await _backend(database)
        async with database.reading() as connection:
            await connection.execute(_WHO.sql)


async def _read_after_hanging_up(
    connection: WatchedConnection, statement: Coroutine[Any, Any, object]
) -> None:
    reading = asyncio.create_task(statement)
    while connection.pgconn.transaction_status != TransactionStatus.ACTIVE:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0)
    select.select([connection.pgconn.socket], [], [], 20)
    connection.hang_up()
    await reading


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
