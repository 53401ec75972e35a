"""Manages the connection rules of the embedded PostgreSQL in pg_hba.conf."""

import os
import re
import stat
from pathlib import Path

from tollkeeper.domain.errors import Unavailable

_NAME = "pg_hba.conf"
_BYTES_MAX = 1 << 20
_FIELD = r"(?:\"[^\"]*\"|[^\s\"])+\s+"
# Type, database, user, address, a mask if the address has none, and the method.
_TRUSTED_HOST = re.compile(
    rf"^(\s*host\w*\s+{_FIELD}{_FIELD}{_FIELD}(?:[0-9A-Fa-f.:]+\s+)?)trust(?=\s|$)", re.MULTILINE
)


def reject_trusted_hosts(cluster: Path, uid: int) -> None:
    """Rejects network connections that earlier versions trusted. `uid` owns the cluster. Nothing
    else in the file changes."""
    try:
        old, status = _read(cluster / _NAME, uid)
        new = _TRUSTED_HOST.sub(r"\1reject", old)
        if new != old:
            _replace(cluster / _NAME, new, status)
    except FileNotFoundError:
        return  # the cluster is incomplete, and the server reports it
    except (OSError, UnicodeDecodeError) as exc:
        raise Unavailable(
            f"The embedded PostgreSQL cannot use {cluster / _NAME}: {exc}. "
            f"It must be a text file of user {uid}."
        ) from exc


def _read(path: Path, uid: int) -> tuple[str, os.stat_result]:
    """Rejects a link and a file of another user, because root must not copy a file that
    PostgreSQL's account cannot read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            raise OSError(f"it belongs to user {status.st_uid} or is not a file")
        written = file.read(_BYTES_MAX + 1)
    if len(written) > _BYTES_MAX:
        raise OSError(f"it has more than {_BYTES_MAX} bytes")
    return written.decode(), status


def _replace(path: Path, text: str, status: os.stat_result) -> None:
    """Renames the new file when it is complete."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchown(descriptor, status.st_uid, status.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    fresh.rename(path)
