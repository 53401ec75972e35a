"""Tests `tollkeeper migrate`, and commands with a database that no other process runs."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.support.program import Program, postgres_runs
from tollkeeper.database.schema import code_revision
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.slow


def test_commands_start_and_stop_the_database_by_themselves(
    installation: Callable[[], tuple[Program, Path]],
) -> None:
    program, data_dir = installation()
    assert "run `tollkeeper migrate`" in program.refusal("organization", "list")
    assert not postgres_runs(data_dir)

    assert program.json("migrate") == {"revision": code_revision()}
    assert not postgres_runs(data_dir)
    # A second migration changes nothing, and no data is lost.
    created = program.json("organization", "create", "Acme")
    assert program.json("migrate") == {"revision": code_revision()}
    assert program.json("organization", "list")["data"] == [created]
    assert not postgres_runs(data_dir)

    _refuses_a_database_that_may_lose_money(program, data_dir)


def _refuses_a_database_that_may_lose_money(program: Program, data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        for setting, line in (
            ("fsync", ("serve",)),
            ("full_page_writes", ("organization", "list")),
        ):
            _alter(server.conninfo, f"SET {setting} = off")
            assert f"The database runs with {setting}=off" in program.refusal(*line)
            _alter(server.conninfo, f"RESET {setting}")


def _alter(conninfo: str, change: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM {change}".encode())
        connection.execute("SELECT pg_reload_conf()")
