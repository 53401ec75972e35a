"""Tests transactions of one or two round trips: results and errors equal those of the driver."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import uvloop
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from tests.support.machines import database_relay
from tollkeeper.core.errors import Unavailable
from tollkeeper.database import round_trips
from tollkeeper.database.database import Contention, Database
from tollkeeper.database.round_trips import Statement

_ADD = Statement("test_add", "INSERT INTO trips (id, text) VALUES (%s, %s)")
_READ = Statement("test_read", "SELECT id, text FROM trips WHERE id = ANY (%s) ORDER BY id")
_LOCK = Statement("test_lock", "SELECT id FROM trips WHERE id = %s FOR UPDATE")
_DIVIDE = Statement("test_divide", "SELECT 1 / %s::integer")
# The first byte of a result: the statement's parameters were accepted.
_FIRST_BYTE = b"2"
_SENT_WITHIN_S = 0.1
_SLOW_LENGTH = Statement("test_slow_length", "SELECT length(%s::text), pg_sleep(0.3)::text")


@pytest.fixture
async def database(conninfo: str) -> AsyncIterator[Database]:
    made = Database(conninfo, pool_size=2, pool_timeout_s=20, statement_timeout_s=20)
    await made.open()
    async with made.autocommit() as connection:
        await connection.execute("DROP TABLE IF EXISTS trips")
        await connection.execute("CREATE TABLE trips (id integer PRIMARY KEY, text text)")
    yield made
    async with made.autocommit() as connection:
        await connection.execute("DROP TABLE trips")
    await made.close()


async def _texts(database: Database) -> dict[int, str]:
    async with database.autocommit() as connection:
        cursor = await connection.execute("SELECT id, text FROM trips")
        return dict(await cursor.fetchall())


async def _add(database: Database, number: int, text: str | None) -> None:
    async with database.round_trips() as trips:
        await trips.begin()
        await trips.commit(_ADD.bind(number, text))


async def test_values_come_as_the_driver_gives_them(database: Database) -> None:
    some = uuid4()
    sql = "SELECT %s::uuid, %s::bigint, %s::numeric, %s::text, true, NULL::text, ARRAY['a', NULL]"
    given = (str(some), 7, str(10**30), "ü{},\"'\\ \n")
    async with database.round_trips() as trips:
        [[mine]] = await trips.begin(Statement("test_values", sql).bind(*given))
        cursor = await trips.connection.execute(sql, given)
        assert mine == await cursor.fetchone()
        await trips.commit()
    assert mine == (some, 7, 10**30, given[3], True, None, ["a", None])


async def test_what_was_committed_is_there_and_what_was_not_is_not(database: Database) -> None:
    await _add(database, 1, "one")
    with pytest.raises(ZeroDivisionError):
        async with database.round_trips() as trips:
            await trips.begin(_ADD.bind(2, "two"))
            raise ZeroDivisionError
    async with database.round_trips() as trips:
        [rows] = await trips.begin(_READ.bind([1, 2, 3]))
        # Between the round trips, other statements can use the connection inside the transaction.
        await trips.connection.execute("INSERT INTO trips VALUES (3, 'three')")
        await trips.commit(_ADD.bind(4, None))
    assert rows == [(1, "one")]
    assert await _texts(database) == {1: "one", 3: "three", 4: None}


async def test_a_refused_statement_refuses_the_commit(database: Database) -> None:
    await _add(database, 1, "one")
    with pytest.raises(pg.UniqueViolation):
        async with database.round_trips() as trips:
            await trips.begin(_ADD.bind(2, "two"))
            await trips.commit(_ADD.bind(3, "three"), _ADD.bind(1, "again"), _ADD.bind(4, "four"))
    with pytest.raises(pg.DivisionByZero):
        async with database.round_trips() as trips:
            await trips.begin(_READ.bind([1]), _DIVIDE.bind(0), _READ.bind([1]))
    assert await _texts(database) == {1: "one"}
    await _add(database, 5, "the same connections work on")


async def test_a_transaction_of_one_round_trip_is_whole(database: Database) -> None:
    async with database.round_trips() as trips:
        added, read = await trips.run(_ADD.bind(1, "one"), _READ.bind([1, 2]))
    assert (added, read) == ([], [(1, "one")])
    for refused in (_ADD.bind(1, "again"), _DIVIDE.bind(0)):
        with pytest.raises((pg.UniqueViolation, pg.DivisionByZero)):
            async with database.round_trips() as trips:
                await trips.run(_ADD.bind(2, "two"), refused, _ADD.bind(3, "three"))
    assert await _texts(database) == {1: "one"}
    async with database.round_trips() as trips:
        await trips.run(_ADD.bind(4, "four"))
        # The transaction is committed, and no transaction is open.
        assert await _texts(database) == {1: "one", 4: "four"}
        assert trips.connection.info.transaction_status == TransactionStatus.IDLE


async def test_a_commit_that_is_refused_raises(database: Database) -> None:
    """A deferred constraint is checked by the commit, after every statement has succeeded."""
    async with database.autocommit() as connection:
        await connection.execute(
            "ALTER TABLE trips ADD other integer REFERENCES trips DEFERRABLE INITIALLY DEFERRED"
        )
    late = Statement("test_late", "INSERT INTO trips (id, other) VALUES (%s, %s)")
    with pytest.raises(pg.ForeignKeyViolation):
        async with database.round_trips() as trips:
            await trips.run(late.bind(1, 2))
    with pytest.raises(pg.ForeignKeyViolation):
        async with database.round_trips() as trips:
            await trips.begin()
            await trips.commit(late.bind(1, 2))
    assert await _texts(database) == {}
    async with database.round_trips() as trips:
        await trips.run(late.bind(1, 2), _ADD.bind(2, "two"))
    assert set(await _texts(database)) == {1, 2}


async def test_settings_end_with_a_transaction_of_one_round_trip(database: Database) -> None:
    setting = Statement("test_setting", "SELECT set_config('enable_indexscan', %s, true)")
    shown = Statement("test_shown", "SELECT current_setting('enable_indexscan')")
    async with database.round_trips() as trips:
        assert (await trips.run(setting.bind("off"), shown.bind()))[1] == [("off",)]
        assert await trips.run(shown.bind()) == [[("on",)]]


async def test_what_the_driver_has_dropped_is_prepared_again(database: Database) -> None:
    for number in range(20):
        async with database.round_trips() as trips:
            await trips.run(_ADD.bind(number, "x"))
            connection = trips.connection
            await connection.execute("SELECT %s", (number,), prepare=True)
            await connection.execute("BEGIN")
            await connection.rollback()
            cursor = await connection.execute("SELECT count(*) FROM pg_prepared_statements")
            assert await cursor.fetchone() == (0,)
            # The statement is prepared again, on the same connection.
            await trips.run(_READ.bind([number]))
    assert len(await _texts(database)) == 20


async def test_what_is_dropped_before_the_commit_is_contention(database: Database) -> None:
    """Nothing is written, and later transactions prepare their statements again."""
    await _add(database, 1, "one")
    with pytest.raises(Contention):
        async with database.round_trips() as trips:
            await trips.begin(_ADD.bind(2, "two"))
            await trips.connection.execute("DEALLOCATE ALL")
            await trips.commit(_ADD.bind(3, "three"))
    for number in (4, 5, 6):
        await _add(database, number, "x")
    assert set(await _texts(database)) == {1, 4, 5, 6}


async def test_one_round_trip_prepares_again_what_was_dropped(database: Database) -> None:
    for number in range(5):
        async with database.round_trips() as trips:
            await trips.run(_ADD.bind(number, "x"))
            await trips.connection.execute("DEALLOCATE ALL")
    assert len(await _texts(database)) == 5


async def test_a_large_statement_goes_out_in_pieces(database: Database) -> None:
    text = "x" * (30 << 20)
    await _add(database, 1, text)
    assert (await _texts(database))[1] == text


async def test_the_event_loop_rests_while_the_server_runs_a_large_statement(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket stays writable after a large statement was sent. The event loop must not wake up for
    this again and again."""
    wakes = 0
    wake = round_trips._wake

    def count(ready: asyncio.Future[None]) -> None:
        nonlocal wakes
        wakes += 1
        wake(ready)

    monkeypatch.setattr(round_trips, "_wake", count)
    async with database.round_trips() as trips:
        ((row,),) = await trips.run(_SLOW_LENGTH.bind("x" * (4 << 20)))
    assert row[0] == 4 << 20
    # One wake for each piece that is sent.
    assert wakes < 1000


async def test_a_connection_that_is_cut_is_unavailable_and_replaced(
    database: Database, conninfo: str
) -> None:
    await _add(database, 1, "one")
    async with database.transaction() as holder:
        await holder.execute("SELECT FROM trips WHERE id = 1 FOR UPDATE")

        async def wait() -> None:
            async with database.round_trips() as trips:
                await trips.begin(_LOCK.bind(1))

        waiting = asyncio.create_task(wait())
        await _until_somebody_waits(conninfo, holder.info.backend_pid)
        await holder.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND query LIKE '%FROM trips%'"
        )
        with pytest.raises(Unavailable):
            await waiting
    for number in (2, 3, 4):
        await _add(database, number, "x")


def test_a_reset_within_a_result_is_unavailable(conninfo: str) -> None:
    """After an error on a socket, uvloop closes its registration of the socket. The wait for the rest of
    the result must fail like any other lost connection, so that the ledger repeats its transaction."""
    uvloop.run(_read_until_reset(conninfo))


async def _read_until_reset(conninfo: str) -> None:
    async with database_relay(conninfo) as relay:
        address = make_conninfo(conninfo, host="127.0.0.1", port=relay.port)
        database = Database(address, pool_size=1, pool_timeout_s=20, statement_timeout_s=20)
        await database.open()
        try:
            async with database.round_trips() as trips:
                assert await trips.run(_DIVIDE.bind(1)) == [[(1,)]]
            relay.cut(True)
            with pytest.raises(Unavailable):
                async with database.round_trips() as trips:
                    running = asyncio.create_task(trips.run(_DIVIDE.bind(1)))
                    await asyncio.wait([running], timeout=_SENT_WITHIN_S)
                    relay.reset_all(_FIRST_BYTE)
                    await running
        finally:
            await database.close()


async def test_who_is_cancelled_leaves_no_connection_in_the_middle(
    database: Database, conninfo: str
) -> None:
    await _add(database, 1, "one")
    for _ in range(3):
        async with database.transaction() as holder:
            await holder.execute("SELECT FROM trips WHERE id = 1 FOR UPDATE")

            async def wait() -> None:
                async with database.round_trips() as trips:
                    await trips.begin(_LOCK.bind(1))

            waiting = asyncio.create_task(wait())
            await _until_somebody_waits(conninfo, holder.info.backend_pid)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    await asyncio.gather(*(_add(database, number, "x") for number in range(2, 12)))
    assert len(await _texts(database)) == 11


async def _until_somebody_waits(conninfo: str, holder: int) -> None:
    """Waits until a connection is blocked by `holder`. Both connections of the pool are in use, so this
    function opens its own."""
    onlooker = Database(conninfo, pool_size=1, pool_timeout_s=20, statement_timeout_s=20)
    await onlooker.open()
    try:
        async with asyncio.timeout(20), onlooker.autocommit() as connection:
            while True:
                cursor = await connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))",
                    (holder,),
                )
                row = await cursor.fetchone()
                if row is not None and row[0]:
                    return
                await asyncio.sleep(0.01)
    finally:
        await onlooker.close()
