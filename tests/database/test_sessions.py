"""Tests the settings of the gateway's database sessions, and poolers that discard these settings."""

import asyncio
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.databases import own_database
from tests.support.gateway_processes import installed_program
from tests.support.pooler import pooler
from tests.support.upstream import Upstream, chat
from tollkeeper.core.errors import StateConflict
from tollkeeper.database.migrations import migrate
from tollkeeper.database.schema import check_database, find_outdated
from tollkeeper.database.sessions import check_session, session_conninfo, session_settings


def test_a_direct_connection_keeps_its_settings(conninfo: str) -> None:
    check_database(conninfo, before_serving=True)


def test_a_database_with_other_defaults_is_overruled(conninfo: str) -> None:
    """Default settings of the role or of the database do not change the gateway's sessions."""
    check_database(_weak_database(conninfo))


def test_a_session_that_is_not_durable_is_refused(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute(session_settings(5).encode())
        check_session(connection)
        connection.execute("SET synchronous_commit = off")
        with pytest.raises(StateConflict, match="synchronous_commit is off"):
            check_session(connection)


def test_a_pooler_in_session_mode_keeps_the_settings(conninfo: str) -> None:
    with pooler(_weak_database(conninfo), "session") as address:
        check_database(address, before_serving=True)


def test_a_pooler_in_transaction_mode_is_refused(conninfo: str) -> None:
    own = own_database(conninfo, f"pooled_{uuid4().hex}")
    with (
        pooler(own, "transaction") as address,
        pytest.raises(StateConflict, match="transaction mode"),
    ):
        check_database(address, before_serving=True)


async def test_unusual_defaults_of_a_role_change_nothing(
    conninfo: str, tmp_path: Path, compiled: dict[str, str]
) -> None:
    """A new database is migrated, checked and served with defaults that change how values are written and
    read, and where tables are found."""
    name = f"unusual_{uuid4().hex}"
    unusual = {
        "datestyle": "German",
        "intervalstyle": "iso_8601",
        "bytea_output": "escape",
        "array_nulls": "off",
        "transform_null_equals": "on",
        "search_path": "nowhere",
        "timezone": "'Asia/Kathmandu'",
        "extra_float_digits": "-15",
    }
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        for setting, value in unusual.items():
            whose = f"ROLE CURRENT_USER IN DATABASE {name}"
            connection.execute(f"ALTER {whose} SET {setting} = {value}".encode())
    url = make_conninfo(conninfo, dbname=name)
    assert migrate(url) == migrate(url)
    assert find_outdated(url) is None
    async with (
        Upstream(chat()) as upstream,
        installed_program(tmp_path, tmp_path, url, upstream, compiled) as installed,
    ):
        doctor = await asyncio.to_thread(installed.program.run, "doctor")
        assert "schema" in doctor.out, doctor
        assert (await asyncio.to_thread(installed.program.run, "database", "accept")).code == 0
        async with installed.serving() as (_, scripted):
            assert (await scripted.chat()).status_code == 200
        assert (await asyncio.to_thread(installed.program.json, "ledger", "verify"))["ok"]


def _weak_database(conninfo: str) -> str:
    own = own_database(conninfo, f"weak_{uuid4().hex}")
    with psycopg.connect(own) as connection:
        for setting in ("synchronous_commit = off", "timezone = 'CET'"):
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {setting}")
    return own


def test_of_several_servers_the_primary_is_wanted() -> None:
    several = session_conninfo("postgresql://one,two/books")
    assert conninfo_to_dict(several)["target_session_attrs"] == "read-write"
    one = session_conninfo("postgresql://one/books")
    assert "target_session_attrs" not in conninfo_to_dict(one)
    chosen = "postgresql://one,two/books?target_session_attrs=primary"
    found = conninfo_to_dict(session_conninfo(chosen))
    assert found["target_session_attrs"] == "primary"
