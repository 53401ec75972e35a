"""Tests backup and restore with the commands and settings of docs/backup.md: the ledger is restored to
the moment before a mistake, and a new standby follows the restored server."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.data_folders import cluster_of, data_folder
from tests.support.documents import ROOT, Block, blocks_of
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, eventually, write_config
from tollkeeper.database.migrations import migrate
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.embedded.postgres_account import Account, ensure_account, owner_ids
from tollkeeper.setup.embedded.postgres_programs import find_programs

pytestmark = pytest.mark.slow

_WITHIN_S = 120
# In the wheel of the embedded PostgreSQL, this program crashes even with --version.
_BROKEN_IN_THE_WHEEL = ("pg_verifybackup",)


def _block(containing: str) -> Block:
    """Returns the only block of the document that contains this text."""
    document = ROOT / "docs" / "backup.md"
    (found,) = [block for block in blocks_of(document) if containing in block.text]
    return found


class Backup:
    """The folders that the document calls /backup and /standby, and the account that runs PostgreSQL."""

    def __init__(self, folder: Path) -> None:
        self.account: Account | None = ensure_account() if os.geteuid() == 0 else None
        self.folder = folder / "backup"
        self.wal = self.folder / "wal"
        self.standby = folder / "standby"
        for place in (self.folder, self.wal, self.standby):
            place.mkdir(mode=0o700)
            self.give(place)

    def give(self, path: Path) -> None:
        """Makes the account that runs PostgreSQL the owner of `path` and of all files in it."""
        if self.account is not None:
            for inner in (path, *path.rglob("*")):
                os.chown(inner, *owner_ids(self.account), follow_symlinks=False)

    def lines(self, containing: str) -> str:
        """Returns the document's lines for PostgreSQL's settings, with the test's folder in them."""
        return _block(containing).text.replace("/backup", str(self.folder))

    def run(self, command: str, host: str) -> None:
        for shown, place in (("/backup", self.folder), ("/standby", self.standby)):
            command = command.replace(shown, str(place))
        program, *arguments = shlex.split(command)
        account = self.account
        done = subprocess.run(
            [str(find_programs(account) / program), *arguments],
            env={**os.environ, "PGHOST": host, "PGUSER": "postgres"},
            cwd="/",
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    with data_folder() as made:
        yield made


def _program(folder: Path, data_dir: Path, compiled: dict[str, str]) -> Program:
    settings = folder / f"settings-{data_dir.name}"
    settings.mkdir()
    return Program(write_config(settings, data_dir), settings, compiled, warm=True)


def _granted(program: Program) -> str:
    return str(program.json("credit", "show", "Acme")["granted"])


def _make_archive(data_dir: Path, backup: Backup) -> None:
    """Creates a database cluster whose settings contain the document's lines."""
    data_dir.mkdir(mode=0o711)
    with EmbeddedPostgres(data_dir) as server:
        migrate(server.conninfo)
    with (cluster_of(data_dir) / "postgresql.conf").open("a") as settings:
        settings.write(f"\n{backup.lines('archive_command')}")


def _segment(connection: psycopg.Connection) -> str:
    """Returns the name of the current WAL file, and ends this file so that PostgreSQL archives it."""
    row = connection.execute("SELECT pg_walfile_name(pg_current_wal_lsn())").fetchone()
    assert row is not None
    connection.execute("SELECT pg_switch_wal()")
    return str(row[0])


def _restore(data_dir: Path, backup: Backup, base: Path, moment: str) -> None:
    data_dir.mkdir(mode=0o711)
    cluster = data_dir / "postgres"
    shutil.copytree(base, cluster)
    (cluster / "recovery.signal").touch()
    lines = re.sub(r"(?<=target_time = ')[^']+", moment, backup.lines("restore_command"))
    with (cluster / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"\n{lines}")
    cluster.chmod(0o700)
    backup.give(cluster)


def _host(server: EmbeddedPostgres) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(server.conninfo)["host"])


def _is_promoted(conninfo: str) -> bool:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    return row == (False,)


def _leftovers(program: Program) -> list[str]:
    """Returns the doctor's results about settings of the restore. Its other checks need backends, which
    this test does not start."""
    found = json.loads(program.run("doctor", "--json").out)["data"]
    return [one["detail"] for one in found if "recovery_target" in one["detail"]]


def _follow(backup: Backup, conninfo: str, host: str) -> None:
    """Creates a standby with the document's commands. Checks that it follows the server and does not
    promote itself."""
    for command in _block("--write-recovery-conf").commands:
        backup.run(command, host)
    # The copied settings of the embedded server reject network connections.
    access = backup.standby / "pg_hba.conf"
    access.write_text(f"host all all 127.0.0.1/32 trust\n{access.read_text()}")
    standby = PostgresServer(backup.standby)
    standby.start()
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("CREATE TABLE followed ()")
        eventually(lambda: standby.query("SELECT to_regclass('followed')") == [("followed",)])
        assert standby.query("SELECT pg_is_in_recovery()") == [(True,)]
    finally:
        standby.stop()


def test_the_books_are_restored_to_a_moment(folder: Path, compiled: dict[str, str]) -> None:
    backup = Backup(folder)
    old, new = folder / "old", folder / "new"
    _make_archive(old, backup)
    program = _program(folder, old, compiled)
    with EmbeddedPostgres(old) as server:
        program.json("organization", "create", "Acme")
        program.json("credit", "grant", "Acme", "100")
        host = _host(server)
        for command in _block("pg_verifybackup").commands:
            if command.split()[0] not in _BROKEN_IN_THE_WHEEL:
                backup.run(command, host)
        program.json("credit", "grant", "Acme", "20")
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            row = connection.execute("SELECT clock_timestamp()::text").fetchone()
            assert row is not None
            program.json("credit", "grant", "Acme", "-120")
            segment = _segment(connection)
        eventually((backup.wal / segment).exists)
        assert _granted(program) == "0"
    (base,) = backup.folder.glob("base-*")
    _restore(new, backup, base, row[0])
    restored = _program(folder, new, compiled)
    with EmbeddedPostgres(new) as server:
        eventually(lambda: _is_promoted(server.conninfo))
        (leftover,) = _leftovers(restored)
        assert "recovery_target_time" in leftover
        assert "recovery_target_action" in leftover
        for command in _block("ALTER SYSTEM RESET").commands:
            backup.run(command, _host(server))
        assert _leftovers(restored) == []
        for command in _block("ledger verify --full").commands:
            # The doctor would fail, because the test does not start the backend of the settings.
            if "doctor" not in command:
                told = restored.run(*command.split()[1:])
                assert told.code == 0, told.err
        assert _granted(restored) == "120"
        assert restored.json("ledger", "verify", "--full")["ok"] is True
        _follow(backup, server.conninfo, _host(server))
