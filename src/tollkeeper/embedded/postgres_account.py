"""The account that PostgreSQL runs under when the program runs as root, and what it can reach.

PostgreSQL refuses to run as root.
"""

import contextlib
import fcntl
import os
import pwd
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tollkeeper.domain.errors import Unavailable
from tollkeeper.embedded.postgres_folders import made_folder

ACCOUNT_NAME = "tollkeeper-db"
_CREATION_TIMEOUT_S = 60.0
_PAUSE_S = 0.1
# What useradd says, in the C locale, while another process changes /etc/passwd or /etc/group.
_LOCKED = "try again later"
_READ, _ENTER = 4, 1


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int

    def can_enter(self, status: os.stat_result) -> bool:
        """Whether the account can pass through a folder with this status."""
        return self._has(status, _ENTER)

    def can_use(self, status: os.stat_result) -> bool:
        """Whether the account can read this file or folder, and run or enter it where anybody can."""
        anybody_executes = status.st_mode & 0o111
        return self._has(status, _READ | _ENTER if anybody_executes else _READ)

    def first_closed_folder(self, folder: Path) -> Path | None:
        """The topmost folder on the way to `folder`, itself included, that the account cannot enter."""
        for step in (*reversed(folder.parents), folder):
            if not self.can_enter(step.stat()):
                return step
        return None

    def _has(self, status: os.stat_result, wanted: int) -> bool:
        # The kernel looks at one class of bits only: the first one that applies. PostgreSQL runs
        # with the account's main group and no other.
        if status.st_uid == self.uid:
            shift = 6
        elif status.st_gid == self.gid:
            shift = 3
        else:
            shift = 0
        return (status.st_mode >> shift) & wanted == wanted


def owner_ids(account: Account | None) -> tuple[int, int]:
    """User and group of PostgreSQL: those of its account, or this process's own."""
    if account is None:
        return os.geteuid(), os.getegid()
    return account.uid, account.gid


def ensure_account(name: str = ACCOUNT_NAME, *, timeout_s: float = _CREATION_TIMEOUT_S) -> Account:
    """The system account `name`, which is made where it does not exist."""
    deadline = time.monotonic() + timeout_s
    found = _find(name)
    if found is not None:
        return found
    # Of two useradd that run at once, both can succeed, and the second one changes the user id that
    # the first one gave to the account. So only one process at a time makes accounts.
    with _alone(name, deadline):
        failure = ""
        while (found := _find(name)) is None:
            if failure and (_LOCKED not in failure or time.monotonic() >= deadline):
                raise _refusal(name, failure)
            if failure:
                time.sleep(_PAUSE_S)
            failure = _useradd(name)
        return found


def _find(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid)


@contextlib.contextmanager
def _alone(name: str, deadline: float) -> Iterator[None]:
    descriptor = os.open(made_folder(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise _refusal(
                        name, "another process has been making it for too long"
                    ) from None
                time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def _useradd(name: str) -> str:
    """Runs useradd once. Returns the reason that holds if the account still does not exist."""
    command = ["useradd", "--system", "--no-create-home", "--shell", "/bin/false", name]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_CREATION_TIMEOUT_S,
        )
    except (subprocess.SubprocessError, OSError) as exc:
        return str(exc)
    said = "; ".join(done.stderr.split("\n")).strip("; .")
    return said or f"useradd ended with code {done.returncode} and said nothing"


def _refusal(name: str, reason: str) -> Unavailable:
    return Unavailable(
        f"PostgreSQL cannot run as root, and the account {name} cannot be made: {reason}. "
        "Start tollkeeper as another user, or set database.url."
    )
