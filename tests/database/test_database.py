"""Tests the database pool: transactions, time limits, and the domain errors for driver errors."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import psycopg
import pytest
from bench.ports import free_port
from psycopg.conninfo import make_conninfo

from tests.support.gateway import Gateway
from tests.support.machines import Relay, database_relay
from tollkeeper.core.errors import NotFound, Unavailable
from tollkeeper.database.database import (
    ChangeInDoubt,
    Connection,
    Contention,
    Database,
    operator_reason,
)
from tollkeeper.database.reachability import DatabaseUnreachable, Reachability, driver_reason
from tollkeeper.database.watched_connection import allow_long_statements
from tollkeeper.money.holds.statements import COMMIT_ASYNCHRONOUSLY

_INSERT = "INSERT INTO organizations VALUES (%s, 'x', now())"
_RENAME = "UPDATE organizations SET name = %s WHERE id = %s"


async def _exists(database: Database, identity: object) -> bool:
    async with database.autocommit() as connection:
        cursor = await connection.execute("SELECT FROM organizations WHERE id = %s", (identity,))
        return await cursor.fetchone() is not None


@pytest.fixture
def database(gateway: Gateway) -> Database:
    return gateway.services.database


async def test_transaction_is_all_or_nothing(database: Database) -> None:
    kept, lost = uuid4(), uuid4()
    async with database.transaction() as connection:
        await connection.execute(_INSERT, (kept,))
    with pytest.raises(NotFound):
        async with database.transaction() as connection:
            await connection.execute(_INSERT, (lost,))
            raise NotFound
    assert await _exists(database, kept)
    assert not await _exists(database, lost)


async def test_cancelled_transaction_is_rolled_back(database: Database) -> None:
    identity = uuid4()
    inside = asyncio.Event()

    async def write() -> None:
        async with database.transaction() as connection:
            await connection.execute(_INSERT, (identity,))
            inside.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(write())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await _exists(database, identity)


async def _terminate_itself(connection: Connection) -> None:
    await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


async def test_lost_connection_is_unavailable_and_then_replaced(database: Database) -> None:
    with pytest.raises(Unavailable) as lost:
        async with database.autocommit() as connection:
            await _terminate_itself(connection)
    assert lost.value.retry_after_s is not None
    assert not await _exists(database, uuid4())


async def test_slow_statement_is_unavailable(database: Database) -> None:
    with pytest.raises(Unavailable):
        async with database.transaction() as connection:
            await connection.execute("SET LOCAL statement_timeout = 50")
            await connection.execute("SELECT pg_sleep(10)")


async def test_one_of_two_that_wait_for_each_other_is_told_to_try_again(database: Database) -> None:
    """Causes a real deadlock: PostgreSQL aborts one transaction, and the other one commits."""
    first, second = uuid4(), uuid4()
    async with database.transaction() as connection:
        for identity in (first, second):
            await connection.execute(_INSERT, (identity,))
    both_hold_one = asyncio.Barrier(2)

    async def rename(name: str, *identities: object) -> None:
        async with database.transaction() as connection:
            await connection.execute("SET LOCAL lock_timeout = '60s'")
            for identity in identities:
                await connection.execute(_RENAME, (name, identity))
                if identity is identities[0]:
                    await both_hold_one.wait()

    async with asyncio.timeout(20):
        ended = await asyncio.gather(
            rename("a", first, second), rename("b", second, first), return_exceptions=True
        )
    (refused,) = [error for error in ended if error is not None]
    assert isinstance(refused, Contention)
    assert refused.retry_after_s is not None
    async with database.autocommit() as connection:
        cursor = await connection.execute(
            "SELECT DISTINCT name FROM organizations WHERE id = ANY(%s)", ([first, second],)
        )
        assert await cursor.fetchall() == [("a" if ended[0] is None else "b",)]


async def test_mistake_of_ours_is_not_called_unavailable(database: Database) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        async with database.autocommit() as connection:
            await connection.execute("SELECT * FROM no_such_table")


async def test_every_connection_has_its_bounds(database: Database) -> None:
    async with database.autocommit() as connection:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            cursor = await connection.execute("SELECT current_setting(%s)", (name,))
            assert await cursor.fetchone() != ("0",)
        cursor = await connection.execute("SELECT current_setting('timezone')")
        assert await cursor.fetchone() == ("UTC",)


@pytest.fixture
async def silenced(shared_conninfo: str) -> AsyncIterator[tuple[Relay, Database]]:
    """Yields a database that was already used, and the relay that can silently cut off its server."""
    async with database_relay(shared_conninfo) as relay:
        address = make_conninfo(shared_conninfo, host="127.0.0.1", port=relay.port)
        database = Database(address, pool_size=2, pool_timeout_s=1, statement_timeout_s=1)
        await database.open()
        assert not await _exists(database, uuid4())
        yield relay, database
        relay.cut(False)
        await database.close()


async def test_a_server_that_falls_silent_is_unavailable(
    silenced: tuple[Relay, Database],
) -> None:
    relay, database = silenced
    relay.cut(True)
    async with asyncio.timeout(20):
        with pytest.raises(Unavailable):
            await _exists(database, uuid4())
    relay.cut(False)
    async with asyncio.timeout(20):
        while True:
            try:
                assert not await _exists(database, uuid4())
            except Unavailable:
                continue
            break


async def test_a_commit_without_an_answer_is_in_doubt(silenced: tuple[Relay, Database]) -> None:
    relay, database = silenced
    async with asyncio.timeout(20):
        with pytest.raises(ChangeInDoubt, match="Check whether it was made"):
            async with database.transaction() as connection:
                await connection.execute("CREATE TEMPORARY TABLE changed ()")
                relay.cut(True)


@pytest.mark.slow
async def test_a_round_trip_to_a_silent_server_is_unavailable(
    silenced: tuple[Relay, Database],
) -> None:
    relay, database = silenced
    async with asyncio.timeout(20):
        with pytest.raises(Unavailable):
            async with database.round_trips() as trips:
                await trips.run(COMMIT_ASYNCHRONOUSLY)
                relay.cut(True)
                await trips.run(COMMIT_ASYNCHRONOUSLY)


@pytest.mark.slow
async def test_a_long_statement_is_waited_for_where_it_is_allowed(
    silenced: tuple[Relay, Database],
) -> None:
    _, database = silenced
    async with database.transaction() as connection:
        await allow_long_statements(connection, minutes=1)
        cursor = await connection.execute("SELECT pg_sleep(4), 7")
        assert (await cursor.fetchone() or ())[1] == 7


async def test_one_organization_cannot_use_up_the_pool(conninfo: str) -> None:
    database = Database(conninfo, pool_size=4, pool_timeout_s=20, statement_timeout_s=20)
    await database.open()
    begun, go_on = asyncio.Queue[str](), asyncio.Event()

    async def hold_one(organization: str) -> None:
        async with database.autocommit(organization):
            begun.put_nowait(organization)
            await go_on.wait()

    try:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(hold_one("hostile"))
            assert await begun.get() == "hostile"
            group.create_task(hold_one("quiet"))
            assert await begun.get() == "quiet"
            # The gateway's own work needs no turn, however many requests wait for one.
            async with database.autocommit(), database.transaction():
                assert begun.empty()
            go_on.set()
        assert begun.qsize() == 7
    finally:
        await database.close()


async def test_who_waits_too_long_for_a_turn_is_refused_and_leaves_no_trace(conninfo: str) -> None:
    database = Database(conninfo, pool_size=2, pool_timeout_s=0.5, statement_timeout_s=20)
    await database.open()
    await database._pool.wait(20)
    try:
        async with database.autocommit("busy"):
            with pytest.raises(Unavailable, match="busy"):
                async with database.snapshot("busy"):
                    pass
        with pytest.raises(NotFound):
            async with database.transaction("busy"):
                raise NotFound("x")
        async with database.transaction("busy") as connection:
            await connection.execute("SELECT 1")
    finally:
        await database.close()


async def test_a_server_that_cannot_be_reached_is_not_called_busy() -> None:
    """Requests that wait for a connection fail when an attempt has failed; later requests fail at once."""
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    address = f"postgresql://someone:secret@{hosts}/postgres"
    database = Database(address, pool_size=2, pool_timeout_s=600, statement_timeout_s=1)
    await database.open()
    try:
        async with asyncio.timeout(20):
            for _ in range(5):
                with pytest.raises(DatabaseUnreachable) as refused:
                    await _exists(database, uuid4())
                with pytest.raises(DatabaseUnreachable):
                    async with database.round_trips():
                        raise AssertionError("there is no server")
    finally:
        await database.close()
    # The message for clients does not contain the database's address; the operator's reason does.
    assert refused.value.message == "The database cannot be reached; try again."
    reason = operator_reason(refused.value)
    assert reason.startswith(f"The database cannot be reached at {hosts.replace(',', ', ')}: ")
    assert "refused" in reason
    assert "secret" not in reason


def test_the_reason_of_a_refused_statement_is_the_servers_message(conninfo: str) -> None:
    """The driver's message ends with the statement and a caret below the wrong word."""
    with psycopg.connect(conninfo) as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute("SELECT * FROM nowhere")
    assert str(refused.value).endswith("^")
    assert driver_reason(refused.value) == 'relation "nowhere" does not exist'


async def test_the_reason_names_the_failure_of_every_host() -> None:
    with pytest.raises(psycopg.OperationalError) as refused:
        await psycopg.AsyncConnection.connect("host=127.0.0.1,127.0.0.1 port=1,2")
    first, second = driver_reason(refused.value).split("; ")
    assert first == 'connection to server at "127.0.0.1", port 1 failed: Connection refused'
    assert second == 'connection to server at "127.0.0.1", port 2 failed: Connection refused'


async def test_a_wait_that_is_ending_is_left_alone_by_a_failed_attempt() -> None:
    reachability, loop = Reachability("host=db.example"), asyncio.get_running_loop()
    error = psycopg.OperationalError("refused")
    reachability.failed(loop.time(), error)
    with pytest.raises(DatabaseUnreachable):
        async with reachability.waiting():
            try:
                await asyncio.sleep(20)
            finally:
                reachability.failed(loop.time(), error)


async def test_waiting_for_a_busy_pool_is_not_ended_by_another_failure(conninfo: str) -> None:
    """While other connections work, a failed attempt to open one more does not end the wait for one."""
    database = Database(conninfo, pool_size=1, pool_timeout_s=20, statement_timeout_s=20)
    await database.open()
    try:
        async with database.autocommit():
            waiting = asyncio.create_task(_exists(database, uuid4()))
            await asyncio.sleep(0.1)
            began_at = asyncio.get_running_loop().time() - 10
            database.reachability.failed(began_at, psycopg.OperationalError("too many clients"))
            await asyncio.sleep(0.1)
            assert not waiting.done()
        assert await waiting is False
    finally:
        await database.close()
