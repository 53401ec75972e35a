"""The folders that the embedded PostgreSQL needs outside the data folder. The gateway never changes mode or
owner of a folder that it didn't create."""

import os
import stat
from pathlib import Path

from tollkeeper.core.errors import Unavailable

# All that the gateway creates outside the data folder as root. Every account may enter, only root may list or
# change it.
MANAGED_FOLDER = Path("/var/lib/tollkeeper-db")
_MANAGED_MODE = 0o711
_PRIVATE_MODE = 0o700
_PERMISSIONS = 0o777
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ENTERABLE_BY_ALL = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


def managed_folder() -> Path:
    """For clusters and programs of a gateway that runs as root. Raises Unavailable if its owner or mode is
    wrong."""
    try:
        MANAGED_FOLDER.mkdir(mode=_MANAGED_MODE, parents=True, exist_ok=True)
        status = MANAGED_FOLDER.lstat()
        fault = _fault(status, os.geteuid())
        if not fault and status.st_mode & _WRITABLE_BY_OTHERS:
            fault = f"others can write to it (mode {_mode(status)})"
        if not fault and status.st_mode & _ENTERABLE_BY_ALL != _ENTERABLE_BY_ALL:
            # The umask took bits away.
            MANAGED_FOLDER.chmod(_MANAGED_MODE)
    except OSError as exc:
        fault = f"it cannot be created: {exc.strerror}"
    if fault:
        raise Unavailable(
            f"The embedded PostgreSQL cannot use the folder {MANAGED_FOLDER}: {fault}. "
            "It must belong to root, and only root may write to it."
        )
    return MANAGED_FOLDER


def create_private_folder(path: Path, uid: int, gid: int) -> None:
    """Only for the account `uid`. An existing folder stays, unless it's abandoned."""
    try:
        path.mkdir(mode=_PRIVATE_MODE)
    except FileExistsError:
        if not is_abandoned_folder(path):
            return
    if uid != os.geteuid():
        os.chown(path, uid, gid, follow_symlinks=False)


def check_private_folder(path: Path, uid: int) -> None:
    """Raises Unavailable if another user may have created or may read it."""
    status = path.lstat()
    fault = _fault(status, uid)
    if not fault and status.st_mode & _PERMISSIONS != _PRIVATE_MODE:
        fault = f"its mode is {_mode(status)} instead of 0700"
    if fault:
        raise Unavailable(
            f"The embedded PostgreSQL cannot use the folder {path}: {fault}. "
            "Another user may have created it: inspect it, then remove it."
        )


def is_abandoned_folder(path: Path) -> bool:
    """Empty, private and ours: its process was probably killed before it set the owner."""
    status = path.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and status.st_mode & _PERMISSIONS == _PRIVATE_MODE
        and not any(path.iterdir())
    )


def _fault(status: os.stat_result, owner: int) -> str:
    """Why it's no folder of this user, or ""."""
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    if status.st_uid != owner:
        return f"it belongs to user {status.st_uid} instead of user {owner}"
    return ""


def _mode(status: os.stat_result) -> str:
    return f"{status.st_mode & _PERMISSIONS:04o}"
