"""Opens files that several processes of one user lock with `flock`."""

import os
from pathlib import Path
from typing import IO

_MODE = 0o600


def open_lock_file(path: Path) -> IO[bytes]:
    """Whoever can open a file, even read-only, can lock it, so only its owner may. Existing files too:
    earlier versions made them otherwise."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _MODE)
    try:
        os.fchmod(descriptor, _MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "r+b")
