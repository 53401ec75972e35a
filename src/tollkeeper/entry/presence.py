"""Registers and finds the gateways of a data folder. Each locks a file named by its pid. The kernel unlocks
it even if the process is killed, so a dead gateway's file is recognised, whoever has its pid now."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tollkeeper.setup.embedded.lock_file import open_lock_file
from tollkeeper.setup.settings import Settings


@contextlib.contextmanager
def registered_gateway(settings: Settings) -> Iterator[None]:
    """So that `tollkeeper reload` finds it."""
    folder = _folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / str(os.getpid())
    temporary = folder / f".{path.name}"
    with open_lock_file(temporary) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Only once it's locked: `serving_pids` elsewhere could take it for a dead gateway's.
        temporary.rename(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def serving_pids(settings: Settings) -> list[int]:
    """Removes dead ones' files."""
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
