"""Registers and finds the gateways that use a data folder.

Each gateway locks a file whose name is the gateway's pid. The kernel releases the lock when the process
ends, even if the process is killed. So the file of a dead gateway is recognised, even if another process
has got the same pid since.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tollkeeper.embedded.lock_file import open_lock_file
from tollkeeper.settings import Settings


@contextlib.contextmanager
def registered_gateway(settings: Settings) -> Iterator[None]:
    """Registers this process as a gateway until the end of the `with` block, so that `tollkeeper reload`
    finds it."""
    folder = _folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / str(os.getpid())
    temporary = folder / f".{path.name}"
    with open_lock_file(temporary) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # The file gets its final name after it is locked. Otherwise `serving_pids` in another process
        # could take it for the file of a dead gateway.
        temporary.rename(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def serving_pids(settings: Settings) -> list[int]:
    """Returns the pids of live gateways. Removes the files of dead gateways."""
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
