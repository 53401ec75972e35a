"""Tests migrations, and that a start refuses a server that may lose commits or a wrong schema."""

import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from structlog.testing import capture_logs

from tests.support.data_folders import data_folder
from tollkeeper.core.errors import StateConflict, Unavailable
from tollkeeper.database.compatibility import read_schema_state
from tollkeeper.database.fence import find_newest_server
from tollkeeper.database.migrations import migrate
from tollkeeper.database.schema import check_database, code_revision, find_outdated
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres


@pytest.fixture(scope="module")
def spare_server() -> Iterator[str]:
    """Starts a separate server, because the tests change its settings."""
    with data_folder() as folder, EmbeddedPostgres(folder) as it:
        yield it.conninfo


@pytest.fixture
def empty_database(spare_server: str) -> Iterator[str]:
    with psycopg.connect(spare_server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE spare")
        yield make_conninfo(spare_server, dbname="spare")
        connection.execute("DROP DATABASE spare WITH (FORCE)")


def _execute(conninfo: str, *statements: bytes) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def test_empty_database_is_refused_until_migrated(empty_database: str) -> None:
    with pytest.raises(StateConflict, match=r"no schema yet.*tollkeeper migrate"):
        check_database(empty_database)
    migrate(empty_database)
    check_database(empty_database)
    with psycopg.connect(empty_database) as connection:
        assert read_schema_state(connection).revision == code_revision()


def test_a_database_without_a_schema_is_only_refused_once(empty_database: str) -> None:
    """The survey of servers finds no table `server_fence`, and logs nothing about it."""
    with capture_logs() as logged:
        find_newest_server(empty_database, None)
    assert logged == []


def test_migrating_again_changes_nothing(empty_database: str) -> None:
    migrate(empty_database)
    _execute(
        empty_database,
        b"INSERT INTO organizations VALUES (gen_random_uuid(), 'kept', now())",
    )
    migrate(empty_database)
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT name FROM organizations").fetchall() == [("kept",)]


def test_concurrent_migrations_wait_for_each_other(empty_database: str) -> None:
    program = "import sys; from tollkeeper.database.migrations import migrate; migrate(sys.argv[1])"
    command = [sys.executable, "-c", program, empty_database]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    check_database(empty_database)


@pytest.mark.parametrize(
    ("revision", "words"),
    [
        ("9999", "newer than this code"),
        ("0039", "the last code that reads it is commit [0-9a-f]{40}"),
    ],
)
def test_schema_of_another_age(empty_database: str, revision: str, words: str) -> None:
    migrate(empty_database)
    change = f"UPDATE alembic_version SET version_num = '{revision}'"
    _execute(empty_database, change.encode())
    with pytest.raises(StateConflict, match=words):
        check_database(empty_database)


def test_a_schema_from_before_the_first_release(empty_database: str) -> None:
    migrate(empty_database)
    _execute(empty_database, b"UPDATE alembic_version SET version_num = '0039'")
    with pytest.raises(StateConflict, match="at 0039, from before the first release"):
        migrate(empty_database)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_server_that_may_forget(spare_server: str, setting: str) -> None:
    _execute(
        spare_server,
        f"ALTER SYSTEM SET {setting} = off".encode(),
        b"SELECT pg_reload_conf()",
        b"SELECT pg_sleep(0.2)",
    )
    try:
        with pytest.raises(StateConflict, match=f"{setting}=off"):
            check_database(spare_server)
    finally:
        _execute(
            spare_server,
            f"ALTER SYSTEM RESET {setting}".encode(),
            b"SELECT pg_reload_conf()",
            b"SELECT pg_sleep(0.2)",
        )


def test_server_that_is_not_there() -> None:
    nowhere = make_conninfo(host="/nowhere", user="x", dbname="x")
    for attempt in (check_database, migrate):
        with pytest.raises(Unavailable, match=r"cannot be (reached|migrated).*No such file"):
            attempt(nowhere)


def test_wrong_database_name(spare_server: str) -> None:
    with pytest.raises(Unavailable, match="absent"):
        check_database(make_conninfo(spare_server, dbname="absent"))


def test_a_schema_that_cannot_be_read_does_not_stop_the_gateway(empty_database: str) -> None:
    migrate(empty_database)
    _execute(empty_database, b"CREATE ROLE stranger LOGIN")
    try:
        assert find_outdated(make_conninfo(empty_database, user="stranger")) is None
    finally:
        _execute(empty_database, b"DROP ROLE stranger")


def test_money_is_never_a_float(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        found = connection.execute(
            """
            SELECT table_name, column_name FROM information_schema.columns
            WHERE table_schema = 'public' AND data_type IN ('real', 'double precision', 'money')
            """
        ).fetchall()
    assert found == []


def test_every_tenant_table_starts_its_key_with_the_organization(conninfo: str) -> None:
    """Only such tables can be distributed by organization."""
    with psycopg.connect(conninfo) as connection:
        found = connection.execute(
            """
            SELECT c.relname, a.attname
            FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
            WHERE i.indisprimary AND c.relnamespace = 'public'::regnamespace
              AND EXISTS (SELECT FROM pg_attribute o WHERE o.attrelid = c.oid
                          AND o.attname = 'organization_id')
            """
        ).fetchall()
    assert found
    assert {column for _, column in found} == {"organization_id"}
