"""The system account that runs PostgreSQL if the gateway runs as root, which PostgreSQL refuses."""

import fcntl
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tollkeeper.core.errors import Unavailable
from tollkeeper.setup.embedded.postgres_folders import managed_folder

ACCOUNT_NAME = "tollkeeper-db"
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int

    def can_enter(self, folder: Path) -> bool:
        return self.can_run("test", "-x", str(folder))

    def can_run(self, *command: str) -> bool:
        """With the account's main group only, like PostgreSQL."""
        try:
            result = subprocess.run(
                command,
                cwd="/",
                user=self.uid,
                group=self.gid,
                extra_groups=[],
                capture_output=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except (subprocess.SubprocessError, OSError):
            return False
        return result.returncode == 0


def owner_ids(account: Account | None) -> tuple[int, int]:
    """Of the account, otherwise of this process."""
    if account is None:
        return os.geteuid(), os.getegid()
    return account.uid, account.gid


def ensure_account(name: str = ACCOUNT_NAME) -> Account:
    """Creates it if necessary."""
    account = _find(name)
    if account is not None:
        return account
    # Two useradd at once can both succeed, and the second changes the user id that the first assigned. So one
    # at a time; the wait is limited because useradd is.
    descriptor = os.open(managed_folder(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        failure = "" if _find(name) else _useradd(name)
    finally:
        os.close(descriptor)
    account = _find(name)
    if account is None:
        raise Unavailable(
            f"PostgreSQL cannot run as root, and the account {name} cannot be created: {failure}. "
            "Start tollkeeper as another user, or set database.url."
        )
    return account


def _find(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid)


def _useradd(name: str) -> str:
    """Returns the error to show if there's no account afterwards."""
    command = ["useradd", "--system", "--no-create-home", "--shell", "/bin/false", name]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (subprocess.SubprocessError, OSError) as exc:
        return str(exc)
    error_output = "; ".join(result.stderr.split("\n")).strip("; .")
    return error_output or f"useradd ended with code {result.returncode} and printed no error"
