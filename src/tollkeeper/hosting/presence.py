"""Finds gateways that use a data folder: each holds a lock on a file named after its pid.

The kernel releases the lock of a killed process, so a stale file is never mistaken for another
process that got the same pid later.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tollkeeper.embedded.lock_file import open_lock_file
from tollkeeper.settings import Settings


@contextlib.contextmanager
def present(settings: Settings) -> Iterator[None]:
    """Registers this process, so that `tollkeeper reload` finds it, until the context ends."""
    folder = _folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / str(os.getpid())
    temporary = folder / f".{path.name}"
    with open_lock_file(temporary) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # The file gets its final name after it is locked, so that no reader mistakes it for a stale
        # file.
        temporary.rename(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def serving_pids(settings: Settings) -> list[int]:
    """Returns the pids of live gateways. Removes the files of dead ones."""
    pids = []
    for path in sorted(_folder(settings).glob("[0-9]*")):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pids.append(int(path.name))
            else:
                path.unlink(missing_ok=True)
    return pids


def _folder(settings: Settings) -> Path:
    return settings.database.data_dir / "gateways"
