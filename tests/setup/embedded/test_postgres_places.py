"""Tests where a cluster is searched for, the errors if it is not found, and that unsafe folders are refused."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.data_folders import cluster_of, data_folder, do_as_told
from tollkeeper.core.errors import Unavailable
from tollkeeper.setup.embedded import postgres_folders
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.embedded.postgres_account import Account, ensure_account, owner_ids
from tollkeeper.setup.embedded.postgres_folders import (
    MANAGED_FOLDER,
    create_private_folder,
    managed_folder,
)
from tollkeeper.setup.embedded.postgres_places import (
    find_cluster,
    prepare_socket_folder,
    remember_cluster,
)

_only_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root runs PostgreSQL under another account"
)
_STRANGER = 64321  # A user id that is neither root nor the account.


def _make_cluster(data_dir: Path, account: Account) -> Path:
    """Creates a cluster with only the file that is checked before the server starts."""
    data_dir.mkdir(exist_ok=True)
    cluster = find_cluster(data_dir, account)
    assert cluster.parent == MANAGED_FOLDER
    cluster.mkdir()
    (cluster / "PG_VERSION").write_text("18\n")
    remember_cluster(data_dir, cluster)
    assert find_cluster(data_dir, account) == cluster == cluster_of(data_dir)
    return cluster


def _refusal(data_dir: Path, account: Account | None) -> str:
    with pytest.raises(Unavailable) as refused:
        find_cluster(data_dir, account)
    return refused.value.message


@_only_root
def test_moved_data_folder_takes_its_cluster_along(closed: Path, account: Account) -> None:
    cluster = _make_cluster(closed / "my data", account)
    (cluster / "kept").touch()
    moved = (closed / "my data").rename(closed / "moved data")
    refusal = _refusal(moved, account)
    assert f"names {cluster}, which is the database of another data folder" in refusal
    do_as_told(refusal, "mv")
    assert (find_cluster(moved, account) / "kept").exists()
    assert not cluster.exists()


@_only_root
def test_copied_data_folder_gets_a_cluster_of_its_own(closed: Path, account: Account) -> None:
    cluster = _make_cluster(closed / "my data", account)
    copied = shutil.copytree(closed / "my data", closed / "copied data")
    do_as_told(_refusal(copied, account), "rm")
    assert find_cluster(copied, account) != cluster
    assert find_cluster(closed / "my data", account) == cluster


@_only_root
def test_lost_cluster_is_not_replaced_by_an_empty_one(closed: Path, account: Account) -> None:
    data_dir = closed / "my data"
    cluster = _make_cluster(data_dir, account)
    shutil.rmtree(cluster)
    refusal = _refusal(data_dir, account)
    assert f"the database in {cluster} belong together" in refusal
    do_as_told(refusal, "rm")
    assert find_cluster(data_dir, account) == cluster


@_only_root
def test_cluster_of_a_deleted_data_folder_is_not_used_unasked(
    closed: Path, account: Account
) -> None:
    data_dir = closed / "my data"
    cluster = _make_cluster(data_dir, account)
    shutil.rmtree(data_dir)
    data_dir.mkdir()
    refusal = _refusal(data_dir, account)
    assert f"{data_dir / 'postgres.location'} and the database" in refusal
    do_as_told(refusal, "rm")
    assert not cluster.exists()
    assert find_cluster(data_dir, account) == cluster


@_only_root
def test_cluster_that_root_made_elsewhere_is_refused_to_others(
    closed: Path, account: Account
) -> None:
    cluster = _make_cluster(closed / "my data", account)
    refusal = _refusal(closed / "my data", None)
    assert f"was created by root and is in {cluster}. Start tollkeeper as root" in refusal


def test_closed_data_folder_of_ones_own(closed: Path) -> None:
    """If PostgreSQL runs as the same user, it can enter the closed folder."""
    assert find_cluster(closed, None) == closed / "postgres"


# The tests below are about folders whose names other users can guess.


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Creates a folder that this process uses as its temporary folder."""
    with data_folder() as folder:
        folder.chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture
def runner() -> Account | None:
    """Returns the account that runs PostgreSQL, or None if the user of this process runs it."""
    return ensure_account() if os.geteuid() == 0 else None


@pytest.fixture
def long_cluster() -> Path:
    return Path("/", "d" * 60, "e" * 60, "postgres")


def test_socket_folder_is_private(
    temporary: Path, runner: Account | None, long_cluster: Path
) -> None:
    folder = prepare_socket_folder(long_cluster, runner)
    assert folder.parent == temporary
    status = folder.lstat()
    assert (status.st_mode & 0o7777, status.st_uid) == (0o700, owner_ids(runner)[0])
    # The folder of the last start is used again, with its content.
    (folder / ".s.PGSQL.5432.lock").touch()
    assert prepare_socket_folder(long_cluster, runner) == folder


def test_socket_folder_of_a_killed_start_is_used(
    temporary: Path, runner: Account | None, long_cluster: Path
) -> None:
    """The process was killed before it could give the folder to the account."""
    folder = prepare_socket_folder(long_cluster, runner)
    os.chown(folder, os.geteuid(), os.getegid())
    assert prepare_socket_folder(long_cluster, runner) == folder
    assert folder.lstat().st_uid == owner_ids(runner)[0]


def test_short_path_needs_no_other_folder(temporary: Path, runner: Account | None) -> None:
    assert prepare_socket_folder(Path("/short"), runner) == Path("/short")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o701])
def test_open_socket_folder_is_refused(
    temporary: Path, runner: Account | None, long_cluster: Path, mode: int
) -> None:
    folder = prepare_socket_folder(long_cluster, runner)
    folder.chmod(mode)
    with pytest.raises(Unavailable, match=rf"{folder}: its mode is 0{mode:o} instead of 0700"):
        prepare_socket_folder(long_cluster, runner)
    assert folder.stat().st_mode & 0o777 == mode


def test_link_as_socket_folder_is_refused(
    temporary: Path, runner: Account | None, long_cluster: Path
) -> None:
    folder = prepare_socket_folder(long_cluster, runner)
    elsewhere = folder.rename(temporary / "elsewhere")
    folder.symlink_to(elsewhere)
    with pytest.raises(Unavailable, match=rf"{folder}: it is a symbolic link"):
        prepare_socket_folder(long_cluster, runner)
    folder.unlink()
    folder.touch()
    with pytest.raises(Unavailable, match=rf"{folder}: it is not a folder"):
        prepare_socket_folder(long_cluster, runner)


@_only_root
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_socket_folder_of_a_stranger_is_refused(
    temporary: Path, account: Account, long_cluster: Path, mode: int
) -> None:
    folder = prepare_socket_folder(long_cluster, account)
    os.chown(folder, _STRANGER, _STRANGER)
    folder.chmod(mode)
    with pytest.raises(Unavailable, match=rf"{folder}: it belongs to user {_STRANGER}"):
        prepare_socket_folder(long_cluster, account)
    assert folder.stat().st_uid == _STRANGER


@_only_root
def test_temporary_folder_that_the_account_cannot_enter(
    temporary: Path, account: Account, long_cluster: Path
) -> None:
    temporary.chmod(0o700)
    with pytest.raises(Unavailable, match=rf"cannot enter {temporary}\. Set TMPDIR"):
        prepare_socket_folder(long_cluster, account)


def test_server_starts_in_a_folder_with_an_apostrophe_and_a_comma(temporary: Path) -> None:
    with EmbeddedPostgres(temporary / "o'brien, data") as server:
        psycopg.connect(server.conninfo).close()


@pytest.mark.parametrize("character", ['"', "$", "`"])
def test_folder_with_a_character_that_a_shell_interprets_is_refused(
    temporary: Path, character: str
) -> None:
    data_dir = temporary / f"a{character}b"
    with pytest.raises(Unavailable) as refused, EmbeddedPostgres(data_dir):
        pass
    assert f"its path contains {character}" in refused.value.message
    assert not (data_dir / "postgres").exists()


def test_server_does_not_start_in_a_folder_of_strangers(temporary: Path) -> None:
    """The gateway also does not connect to a server that may listen in such a folder."""
    data_dir = temporary / ("d" * 60) / ("e" * 60)
    with EmbeddedPostgres(data_dir) as server:
        assert "host=" in server.conninfo
    (folder,) = temporary.glob("tollkeeper-*")
    folder.chmod(0o777)
    with pytest.raises(Unavailable, match=str(folder)), EmbeddedPostgres(data_dir):
        pass
    assert folder.stat().st_mode & 0o777 == 0o777


def test_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    for folder in (full, empty):
        folder.mkdir()
    full.chmod(0o700)
    (full / "file").touch()
    empty.chmod(0o755)
    for folder in (full, empty):
        before = folder.stat()
        create_private_folder(folder, _STRANGER, _STRANGER)
        after = folder.stat()
        assert (before.st_mode, before.st_uid) == (after.st_mode, after.st_uid)


def test_made_folder_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made"
    monkeypatch.setattr(postgres_folders, "MANAGED_FOLDER", made)
    earlier = os.umask(0o077)
    try:
        assert managed_folder() == made
    finally:
        os.umask(earlier)
    assert made.stat().st_mode & 0o777 == 0o711
    made.chmod(0o773)
    with pytest.raises(Unavailable, match=rf"{made}: others can write to it \(mode 0773\)"):
        managed_folder()
    elsewhere = made.rename(tmp_path / "elsewhere")
    made.symlink_to(elsewhere)
    with pytest.raises(Unavailable, match=rf"{made}: it is a symbolic link"):
        managed_folder()
