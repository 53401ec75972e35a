"""Opens files that processes of one user lock with `flock`."""

import os
from pathlib import Path
from typing import IO

_MODE = 0o600


def open_lock_file(path: Path) -> IO[bytes]:
    """Opens or creates the file. Any user who can open a file can lock it, even read-only, so only
    the owner may open it. A file of an earlier version gets this mode too."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _MODE)
    try:
        os.fchmod(descriptor, _MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "r+b")
