"""Stops the processes and removes the folders that a test run has left, for example because Ctrl-C ended
its test processes before their fixtures could clean up."""

import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.data_folders import MEMORY, RUN, folder_prefix

_STOPPED_WITHIN_S = 10


def _is_test_process(config: pytest.Config) -> bool:
    """Tells whether this is a process that pytest-xdist has started for tests."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    if not _is_test_process(config):
        os.environ[RUN] = secrets.token_hex(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _is_test_process(config):
        remove_leftovers(os.environ.pop(RUN))


def remove_leftovers(run: str) -> None:
    """Kills all processes whose command line or current folder is in a data folder of the run, with their
    child processes. Then removes the run's data folders."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(folder_prefix(run) in text for text in (*process.cmdline(), process.cwd())):
                found |= {process, *process.children(recursive=True)}
    found.discard(psutil.Process())
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=_STOPPED_WITHIN_S)
    for parent in (MEMORY, Path(tempfile.gettempdir())):
        for folder in parent.glob(f"{folder_prefix(run)}*"):
            shutil.rmtree(folder, ignore_errors=True)
