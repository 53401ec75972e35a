"""Creates data folders for tests that start an embedded PostgreSQL."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tollkeeper.setup.embedded.postgres_folders import MANAGED_FOLDER

_LOCATION = "postgres.location"
MEMORY = Path("/dev/shm")
_MEMORY_FREE_MIN = 4 << 30
# The name of an environment variable. Its value is the same in all processes of a test run, and a part
# of the names of the run's data folders (see `tests.support.leftovers`).
RUN = "TOLLKEEPER_TEST_RUN"


def folder_prefix(run: str) -> str:
    """Returns the beginning of the names of the run's data folders."""
    return f"tk-{run}-"


def _folder_in_memory() -> Path | None:
    """Returns None if `TMPDIR` is set, or if the folder is not writable or has too little space."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return None
    return MEMORY if shutil.disk_usage(MEMORY).free >= _MEMORY_FREE_MIN else None


@contextmanager
def data_folder() -> Iterator[Path]:
    """Creates a folder, and removes it at the end with every cluster that belongs to it. The folder is in
    memory if there is space, so that PostgreSQL does not wait for the disk.

    Every account can enter the folder, so the cluster can be inside it even if the tests run as root.
    """
    with tempfile.TemporaryDirectory(
        prefix=folder_prefix(os.environ.get(RUN, "")), dir=_folder_in_memory()
    ) as name:
        folder = Path(name)
        folder.chmod(0o711)
        try:
            yield folder
        finally:
            remove_outside_clusters(folder)


def cluster_of(data_dir: Path) -> Path:
    """Returns the folder of the cluster that belongs to this data folder."""
    location = data_dir / _LOCATION
    return Path(location.read_text().strip()) if location.exists() else data_dir / "postgres"


def remove_outside_clusters(folder: Path) -> None:
    """Removes the clusters outside `folder` that belong to data folders in it."""
    for location in folder.rglob(_LOCATION):
        cluster = Path(location.read_text().strip())
        assert cluster.parent == MANAGED_FOLDER
        shutil.rmtree(cluster, ignore_errors=True)


def do_as_told(refusal: str, command: str) -> None:
    """Runs the command that an error message of the embedded PostgreSQL recommends."""
    found = re.search(rf"`({command} [^`]*)`", refusal)
    assert found is not None, refusal
    subprocess.run(["/bin/sh", "-c", found[1]], check=True)
