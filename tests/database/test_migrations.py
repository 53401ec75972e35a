"""Tests how migrations are declared, and how they are applied while processes use the database."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import util
from pathlib import Path
from shutil import copytree, ignore_patterns
from types import ModuleType, SimpleNamespace
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine

from tests.support.databases import own_database
from tests.support.releases import Migration
from tollkeeper.core.errors import StateConflict
from tollkeeper.database import migrations, revisions
from tollkeeper.database.compatibility import SchemaState, read_schema_state
from tollkeeper.database.migrations import migrate
from tollkeeper.database.revisions import VERSIONS, code_revision

Later = Callable[..., None]
_OLD = code_revision()
# The oldest code that works with this schema. A migration that only adds to the schema keeps it.
_FLOOR = revisions.revisions()[-1].compatible_from


def _modules() -> Iterator[tuple[Path, ModuleType]]:
    for path in sorted(VERSIONS.glob("[0-9]*.py")):
        spec = util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield path, module


def test_every_migration_declares_which_code_works_with_it() -> None:
    """CONTRIBUTING.md explains how to declare this."""
    floor, previous = "", None
    known: set[str] = set()
    for path, module in _modules():
        assert path.name.startswith(f"{module.revision}_"), path.name
        assert module.down_revision == previous, path.name
        known.add(module.revision)
        assert module.compatible_from in known, path.name
        # Older code that a migration excludes does not work with later schemas either.
        assert module.compatible_from >= floor, path.name
        floor, previous = module.compatible_from, module.revision
    assert [found.number for found in revisions.revisions()] == sorted(known)
    assert revisions.revisions()[-1].compatible_from == floor


@pytest.fixture
def database(shared_conninfo: str) -> Iterator[str]:
    name = f"migrated_{uuid4().hex[:8]}"
    yield own_database(shared_conninfo, name)
    with psycopg.connect(shared_conninfo, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Later]:
    """Yields a function that adds migrations, so that this code appears to be a later version."""
    copytree(VERSIONS, tmp_path / "versions", ignore=ignore_patterns("__pycache__"))

    def add(*further: Migration) -> None:
        previous = _OLD
        for migration in further:
            migration.write(tmp_path / "versions", previous)
            previous = migration.revision
        monkeypatch.setattr(revisions, "VERSIONS", tmp_path / "versions")
        monkeypatch.setattr(migrations, "_FOLDER", tmp_path)
        revisions.revisions.cache_clear()

    yield add
    monkeypatch.undo()
    revisions.revisions.cache_clear()


def _state(conninfo: str) -> SchemaState:
    with psycopg.connect(conninfo) as connection:
        return read_schema_state(connection)


def _execute(conninfo: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return [] if cursor.description is None else cursor.fetchall()


def test_the_schema_says_which_code_works_with_it(database: str, later: Later) -> None:
    assert _state(database).revision == _OLD
    later(
        Migration("9001", _FLOOR, "CREATE TABLE zones (name text)"),
        Migration("9002", "9001", "DROP TABLE zones"),
        Migration("9003", "9001"),
    )
    assert migrate(database, until="9001") == "9001"
    assert _state(database) == SchemaState("9001", revisions.revisions()[-4].compatible_from)
    assert migrate(database) == "9003"
    assert _state(database) == SchemaState("9003", "9001")


def test_older_code_judges_a_newer_schema() -> None:
    assert SchemaState("9002", _OLD).refusal is None
    assert "compatible" in SchemaState("9002", _OLD).description
    refusal = SchemaState("9002", "9001").refusal
    assert refusal is not None
    assert "works with code from 9001 on: run a newer tollkeeper" in refusal
    # A newer schema that does not say which code works with it is refused.
    assert SchemaState("9002", None).refusal is not None


def test_contractions_at_the_end_can_wait(database: str, later: Later) -> None:
    later(
        Migration("9001", _FLOOR),
        Migration("9002", "9001"),
    )
    assert migrate(database, serving_only=True) == "9001"
    assert _state(database).refusal is None
    assert "(revision 9002)" in _state(database).description
    assert migrate(database) == "9002"


def test_a_contraction_waits_for_no_process_of_newer_or_dead_code(
    database: str, later: Later
) -> None:
    later(Migration("9001", _FLOOR), Migration("9002", "9001"))
    register = "INSERT INTO processes (id, code_revision, host, pid, heartbeat_at) VALUES"
    _execute(database, f"{register} ('{uuid4()}', '9001', 'newer', 1, now())")
    _execute(database, f"{register} ('{uuid4()}', '{_OLD}', 'dead', 2, now() - interval '1 hour')")
    _execute(database, f"{register} ('{uuid4()}', '{_OLD}', 'older', 3, now())")
    _execute(database, f"{register} ('{uuid4()}', NULL, NULL, NULL, now())")
    _execute(database, f"{register} ('{uuid4()}', '{_OLD}', 'desk', 4, now())")
    _execute(database, "UPDATE processes SET kind = 'console' WHERE host = 'desk'")
    with pytest.raises(StateConflict) as refused:
        migrate(database)
    said = refused.value.message
    assert re.search(rf"older pid 3 \(code {_OLD}, seen \d+ s ago\)", said)
    assert "an unknown host pid unknown (code unknown" in said
    assert re.search(rf"the console on desk pid 4 \(code {_OLD}, seen \d+ s ago\)", said)
    assert "newer pid" not in said
    assert "dead pid" not in said
    # The expanding migration was applied; the contraction was not.
    assert _state(database).revision == "9001"
    _execute(database, "DELETE FROM processes WHERE code_revision IS DISTINCT FROM '9001'")
    assert migrate(database) == "9002"


def test_a_forced_contraction_asks_nobody(database: str, later: Later) -> None:
    later(Migration("9001", "9001"))
    _execute(database, f"INSERT INTO processes (id) VALUES ('{uuid4()}')")
    with pytest.raises(StateConflict):
        migrate(database)
    assert migrate(database, force=True) == "9001"


def test_nobody_waits_behind_a_migration_that_waits(database: str, later: Later) -> None:
    """While a transaction locks the table, the migration has to wait, but other statements do not."""
    later(Migration("9001", _FLOOR, "ALTER TABLE accounts ADD COLUMN zone text"))
    with ThreadPoolExecutor() as pool:
        with psycopg.connect(database) as keeping:
            keeping.execute("SELECT count(*) FROM accounts")
            migrating = pool.submit(migrate, database)
            for _ in range(20):
                _execute(database, "SET statement_timeout = '20s'; SELECT count(*) FROM accounts")
                time.sleep(0.1)
            assert not migrating.done()
        assert migrating.result(60) == "9001"


def test_a_slow_index_build_leaves_all_attempts_for_the_lock(
    database: str, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction locks the table until the first attempt has failed. The time that the index build
    takes does not count."""
    build = migrations._build_indexes
    passed_s = 0.0

    with psycopg.connect(database) as keeping:

        def build_slowly(engine: Engine, module: ModuleType) -> None:
            nonlocal passed_s
            build(engine, module)
            passed_s += 2 * migrations._LOCK_ATTEMPTS_S
            keeping.execute("SELECT count(*) FROM accounts")

        monkeypatch.setattr(migrations, "_build_indexes", build_slowly)
        clock = SimpleNamespace(monotonic=lambda: passed_s, sleep=lambda _: keeping.rollback())
        monkeypatch.setattr(migrations, "time", clock)
        index = {"grants_by_time": "ON grants (granted_at)"}
        column = "ALTER TABLE accounts ADD COLUMN zone text"
        later(Migration("9001", _FLOOR, column, concurrent_indexes=index))
        assert migrate(database) == "9001"


def test_two_runs_with_an_index_that_is_built_beside(database: str, later: Later) -> None:
    index = {"grants_by_time": "ON grants (granted_at)"}
    later(Migration("9001", _FLOOR, concurrent_indexes=index))
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(migrate, database) for _ in range(3)]
        assert [run.result(60) for run in runs] == ["9001"] * 3
    assert _execute(database, _INDEX) == [(True,)]


def test_an_unfinished_index_is_built_anew(database: str, later: Later) -> None:
    _execute(database, "CREATE INDEX grants_by_time ON grants (note)")
    _execute(
        database,
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'grants_by_time'::regclass",
    )
    index = {"grants_by_time": "ON grants (granted_at)"}
    later(Migration("9001", _FLOOR, concurrent_indexes=index))
    migrate(database)
    assert _execute(database, _INDEX) == [(True,)]


_INDEX = """
    SELECT indisvalid AND pg_get_indexdef(indexrelid) LIKE '%(granted_at)' FROM pg_index
    WHERE indexrelid = 'grants_by_time'::regclass
"""
