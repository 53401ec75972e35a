"""Tests that the embedded PostgreSQL is created, shared, stopped by its last user, and survives a crash."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support.data_folders import cluster_of, data_folder
from tollkeeper.core.errors import Unavailable
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.slow


@pytest.fixture
def folder() -> Iterator[Path]:
    with data_folder() as made:
        yield made


def _ask(server: EmbeddedPostgres, query: bytes) -> list[tuple[object, ...]]:
    with psycopg.connect(server.conninfo, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def _answers(server: EmbeddedPostgres) -> bool:
    try:
        _ask(server, b"SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def _postmaster(folder: Path) -> int:
    return int((cluster_of(folder) / "postmaster.pid").read_text().split()[0])


def _kill(process_id: int) -> None:
    """Kills a server with SIGKILL, and waits until its child processes have noticed this and ended."""
    postmaster = psutil.Process(process_id)
    family = [postmaster, *postmaster.children(recursive=True)]
    os.kill(process_id, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while any(_lives(process) for process in family):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _lives(process: psutil.Process) -> bool:
    # A zombie is dead, but stays in the process table if its parent does not reap it.
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.smoke
def test_last_user_stops_the_server(folder: Path) -> None:
    first, second = EmbeddedPostgres(folder), EmbeddedPostgres(folder)
    with first:
        with second:
            pid = _postmaster(folder)
            _ask(first, b"CREATE TABLE kept (x int)")
        assert _answers(first), "the first still uses it"
        assert _postmaster(folder) == pid
    assert not _answers(first)
    # The next start uses the data folder with its content.
    with second:
        assert _ask(second, b"SELECT count(*) FROM kept") == [(0,)]


def test_crashed_server_starts_again_with_its_data(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        _ask(server, b"CREATE TABLE kept (x int)")
        _ask(server, b"INSERT INTO kept VALUES (7)")
        _kill(_postmaster(folder))
        # The next user finds the folder as the crash left it.
        with EmbeddedPostgres(folder) as restarted:
            assert _ask(restarted, b"SELECT x FROM kept") == [(7,)]


def test_a_cluster_whose_making_was_killed_is_made_anew(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tollkeeper.setup.embedded.postgres import *;"
    )
    line = f"{program} EmbeddedPostgres(Path(sys.argv[1])).__enter__()"
    making = psutil.Popen([sys.executable, "-c", line, str(folder)])
    deadline = time.monotonic() + 60
    while not list(folder.glob("postgres*/PG_VERSION")):
        assert time.monotonic() < deadline
        assert making.poll() is None
        time.sleep(0.001)
    for process in [making, *making.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    making.wait(20)
    with EmbeddedPostgres(folder) as server:
        assert _answers(server)
        # Nothing of the first attempt is left.
        assert len(list(folder.glob("postgres*/PG_VERSION"))) == 1


def test_a_cluster_is_made_in_a_folder_that_is_there(folder: Path) -> None:
    """An example of such a folder is the mount point of a volume."""
    with data_folder() as elsewhere, EmbeddedPostgres(elsewhere):
        owner = (elsewhere / "postgres").stat()
    (folder / "postgres").mkdir(mode=0o700)
    os.chown(folder / "postgres", owner.st_uid, owner.st_gid)
    before = (folder / "postgres").stat().st_ino
    with EmbeddedPostgres(folder) as server:
        assert _answers(server)
    assert (folder / "postgres").stat().st_ino == before


def test_concurrent_starts_share_one_server(folder: Path) -> None:
    servers = [EmbeddedPostgres(folder) for _ in range(4)]
    threads = [threading.Thread(target=server.__enter__) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    pid = _postmaster(folder)
    assert all(_answers(server) for server in servers)
    for server in servers[:-1]:
        server.__exit__(None, None, None)
        assert _postmaster(folder) == pid
    servers[-1].__exit__(None, None, None)
    assert not _answers(servers[-1])


@pytest.mark.smoke
def test_server_is_durable_and_private(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        found = connection.execute(
            """
            SELECT name, setting FROM pg_settings WHERE name = ANY (ARRAY['fsync',
                'full_page_writes', 'synchronous_commit', 'data_checksums',
                'listen_addresses', 'server_encoding'])
            """
        ).fetchall()
    assert dict(found) == {
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "data_checksums": "on",
        "listen_addresses": "",
        "server_encoding": "UTF8",
    }


def test_folder_with_a_long_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a socket has a maximum length, and the path of a data folder has none."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # The socket's folder is created in it.
    deep = folder / ("d" * 60) / ("e" * 60)
    with EmbeddedPostgres(deep) as server:
        assert _answers(server)


def test_folder_that_is_no_database(folder: Path) -> None:
    (folder / "postgres").mkdir()
    (folder / "postgres" / "PG_VERSION").write_text("9.1\n")
    with pytest.raises(Unavailable, match="failed at pg_ctl"), EmbeddedPostgres(folder):
        pass


_HOST_RULES = re.compile(r"^host\S*\s.*\s(\S+)$", re.MULTILINE)


def _methods_of_hosts(folder: Path) -> set[str]:
    return set(_HOST_RULES.findall((cluster_of(folder) / "pg_hba.conf").read_text()))


def test_connections_over_a_network_are_rejected(folder: Path) -> None:
    """The server has no network listener. If an operator opens one, it rejects all connections."""
    with EmbeddedPostgres(folder) as server:
        assert _methods_of_hosts(folder) == {"reject"}
        rules = b"SELECT DISTINCT type, auth_method FROM pg_hba_file_rules ORDER BY type"
        assert _ask(server, rules) == [("host", "reject"), ("local", "trust")]


def test_no_setting_of_the_server_opens_a_network_listener(folder: Path) -> None:
    """So the rules of an older cluster, which trust network connections, do no harm."""
    with EmbeddedPostgres(folder) as server:
        _ask(server, b"ALTER SYSTEM SET listen_addresses = '*'")
    with EmbeddedPostgres(folder) as server:
        assert _ask(server, b"SHOW listen_addresses") == [("",)]


def test_no_other_user_can_hold_a_lock(folder: Path) -> None:
    """This is also true if an earlier version created the files so that other users can read them."""
    names = ("postgres.starting", "postgres.users")
    for name in names:
        (folder / name).touch(0o644)
    folder.chmod(0o755)
    with EmbeddedPostgres(folder):
        paths = [folder / name for name in names]
        assert [path.stat().st_mode & 0o777 for path in paths] == [0o600] * 2
        if os.geteuid() == 0:
            for path in paths:
                line = ["flock", "--shared", "--nonblock", str(path), "true"]
                taken = subprocess.run(line, user=65534, capture_output=True, check=False)
                assert b"Permission denied" in taken.stderr
