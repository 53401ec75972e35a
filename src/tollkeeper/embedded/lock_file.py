"""Opens files that several processes of one user lock with `flock`."""

import os
from pathlib import Path
from typing import IO

_MODE = 0o600


def open_lock_file(path: Path) -> IO[bytes]:
    """Opens or creates the file with a mode that allows access only to its owner, because any user who can
    open a file, even read-only, can lock it. Also sets this mode for an existing file, because earlier
    versions created files with another mode."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _MODE)
    try:
        os.fchmod(descriptor, _MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "r+b")
