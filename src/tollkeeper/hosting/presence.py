"""Which gateways serve with a data folder: each holds a lock on a file that is named by its pid.

A killed process loses its lock by itself, so a stale file never names a stranger's process.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tollkeeper.settings import Settings


@contextlib.contextmanager
def present(settings: Settings) -> Iterator[None]:
    """From now on `tollkeeper reload` finds this process."""
    folder = _folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / str(os.getpid())
    fresh = folder / f".{path.name}"
    with fresh.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # It appears locked: nobody can take it for a dead one's.
        fresh.rename(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def serving_pids(settings: Settings) -> list[int]:
    """Those that live; what dead ones left behind is removed."""
    found = []
    for path in sorted(_folder(settings).glob("[0-9]*")):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(int(path.name))
            else:
                path.unlink(missing_ok=True)
    return found


def _folder(settings: Settings) -> Path:
    return settings.database.data_dir / "gateways"
