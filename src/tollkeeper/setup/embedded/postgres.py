"""Creates, starts and stops the embedded PostgreSQL, which several processes can share.

Each holds a shared lock on a file. Whoever has finished tries to get it exclusively: if that works, nobody
else uses the server, so it's stopped. The kernel releases a killed process's lock.

The server listens only on a unix socket, and its access rules reject network connections.
"""

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psycopg

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.late_log import LateLogger
from tollkeeper.setup.embedded.lock_file import open_lock_file
from tollkeeper.setup.embedded.postgres_account import Account, ensure_account, owner_ids
from tollkeeper.setup.embedded.postgres_folders import create_private_folder, is_abandoned_folder
from tollkeeper.setup.embedded.postgres_places import (
    find_cluster,
    is_cluster,
    is_outside,
    prepare_socket_folder,
    remember_cluster,
    remove_unfinished,
    unfinished_cluster,
)
from tollkeeper.setup.embedded.postgres_programs import find_programs

_DATABASE = "postgres"
_ROLE = "postgres"
# For a running server to accept a connection; after this the command tries to start one and fails. If none
# runs, a connection is refused at once.
_ANSWER_TIMEOUT_S = 30
# `pg_ctl` waits this long for a start; its own limit is the sum of both.
_START_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 60

_log = LateLogger("tollkeeper.database")


@dataclass(frozen=True, slots=True)
class _Places:
    """Folders, and the system account that runs the server, None unless the gateway runs as root."""

    account: Account | None
    cluster: Path
    socket_folder: Path


class EmbeddedPostgres:
    """The end of the `with` block stops the server if nobody else uses it."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir.resolve()
        self._places: _Places | None = None
        # With the shared lock, open while this object uses the server.
        self._users_lock: IO[bytes] | None = None

    @property
    def conninfo(self) -> str:
        """Known once the `with` block has begun."""
        return _conninfo(self._known_places())

    def __enter__(self) -> Self:
        self._data_dir.mkdir(parents=True, exist_ok=True)
        with self._exclusive("postgres.starting"):
            self._places = places = self._find_places()
            self._users_lock = open_lock_file(self._data_dir / "postgres.users")
            fcntl.flock(self._users_lock, fcntl.LOCK_SH)
            try:
                if not _answers(places):
                    self._initialise(places)
                    _start(places)
            except BaseException:
                self._users_lock.close()
                raise
        if is_outside(places.cluster):
            _log.info(
                "the embedded database is outside the data folder, which its account cannot enter",
                data_dir=str(self._data_dir),
                cluster=str(places.cluster),
            )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._users_lock is not None
        places = self._known_places()
        with self._exclusive("postgres.starting"), self._users_lock:
            try:
                fcntl.flock(self._users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another process still uses the server
            _run(places, "pg_ctl", "stop", "-D", str(places.cluster), "-m", "fast", "-w")

    def ensure_running(self) -> None:
        """If it doesn't answer, because it has died say."""
        with self._exclusive("postgres.starting"):
            if self._places is None:
                self._places = self._find_places()
            if not _answers(self._places):
                # The socket's folder may have been deleted from the system's temporary folder.
                self._places = self._find_places()
                _start(self._places)

    @contextlib.contextmanager
    def _exclusive(self, name: str) -> Iterator[None]:
        with open_lock_file(self._data_dir / name) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _known_places(self) -> _Places:
        assert self._places is not None, "the server was never started from this object"
        return self._places

    def _find_places(self) -> _Places:
        account = ensure_account() if os.geteuid() == 0 else None
        cluster = find_cluster(self._data_dir, account)
        return _Places(account, cluster, prepare_socket_folder(cluster, account))

    def _initialise(self, places: _Places) -> None:
        """Under a temporary name, renamed when complete: a killed process leaves no folder that looks like a
        cluster."""
        cluster = places.cluster
        if is_cluster(cluster):
            return
        remove_unfinished(cluster)
        if cluster.exists() and not is_abandoned_folder(cluster):
            # It exists already, as a mount point say, and can't be replaced.
            _create_cluster(places, cluster)
        else:
            unfinished = unfinished_cluster(cluster)
            create_private_folder(unfinished, *owner_ids(places.account))
            _create_cluster(places, unfinished)
            unfinished.rename(cluster)
        remember_cluster(self._data_dir, cluster)


def _create_cluster(places: _Places, folder: Path) -> None:
    _run(
        places,
        "initdb",
        "--auth-local=trust",  # safe, because no other account can enter the socket's folder
        "--auth-host=reject",
        "--encoding=utf8",
        "--locale=C",
        "--data-checksums",
        f"--username={_ROLE}",
        "-D",
        str(folder),
    )


def _conninfo(places: _Places) -> str:
    return psycopg.conninfo.make_conninfo(
        host=str(places.socket_folder), user=_ROLE, dbname=_DATABASE
    )


def _answers(places: _Places) -> bool:
    try:
        psycopg.connect(_conninfo(places), connect_timeout=_ANSWER_TIMEOUT_S).close()
    except psycopg.OperationalError:
        return False
    return True


def _start(places: _Places) -> None:
    replace_zombie_pid(places.cluster / "postmaster.pid")
    replace_zombie_pid(places.socket_folder / ".s.PGSQL.5432.lock")
    _run(
        places,
        "pg_ctl",
        "start",
        "-D",
        str(places.cluster),
        "-w",
        "-t",
        str(_START_TIMEOUT_S),
        "-l",
        str(places.cluster / "server.log"),
        "-o",
        f"-c listen_addresses='' -c unix_socket_directories='{places.socket_folder}'",
    )


def _run(places: _Places, program: str, *arguments: str) -> None:
    """As the server's account. Raises Unavailable if it fails."""
    account = places.account
    programs = find_programs(account)
    # Not a pipe: the server inherits pg_ctl's streams and would keep it open.
    with tempfile.TemporaryFile() as output:
        try:
            subprocess.run(
                [str(programs / program), *arguments],
                check=True,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Otherwise it would keep root's groups.
                user=None if account is None else account.uid,
                group=None if account is None else account.gid,
                extra_groups=None if account is None else [],
                # Without the signal of Ctrl-C: the gateway stops first, then the server.
                start_new_session=True,
                timeout=_START_TIMEOUT_S + _STOP_TIMEOUT_S,
            )
        except (subprocess.SubprocessError, OSError) as exc:
            output.seek(0)
            error_output = output.read().decode(errors="replace").strip()[-500:]
            raise Unavailable(
                f"The embedded PostgreSQL in {places.cluster} failed at {program}: {error_output or exc}"
            ) from exc


# Above any of the kernel's.
_UNUSED_PROCESS_ID = 2**22 + 1


def replace_zombie_pid(lock_file: Path) -> None:
    """PostgreSQL replaces a crashed server's lock files, but takes a zombie for a running server, and a
    killed one stays a zombie until its parent reaps it: in a container often process 1, which may never do
    so.

    Only the process id is replaced, because PostgreSQL needs the other lines to find out whether child
    processes still run.
    """
    with contextlib.suppress(FileNotFoundError):
        process, newline, rest = lock_file.read_text().partition("\n")
        if _is_zombie(process):
            lock_file.write_text(f"{_UNUSED_PROCESS_ID}{newline}{rest}")


def _is_zombie(process: str) -> bool:
    try:
        status = Path(f"/proc/{int(process)}/stat").read_text()
    except (ValueError, OSError):
        return False
    # The state follows the program's name in parentheses, which may have some itself.
    return status.rpartition(")")[2].split()[0] == "Z"
