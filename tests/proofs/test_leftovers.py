"""Tests that a test run removes what an interrupted test process has left."""

import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from tests.support.leftovers import remove_leftovers


def test_processes_and_folders_of_a_run_are_removed() -> None:
    sleep = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with tempfile.TemporaryDirectory(prefix="tk-other-") as other:
        left = Path(tempfile.mkdtemp(prefix="tk-ended-"))
        processes = []
        for folder in (left, Path(other)):
            process = psutil.Popen(sleep, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            process.stdout.readline()
            processes.append(process)
        remove_leftovers("ended")
        assert [process.poll() is None for process in processes] == [False, True]
        assert (left.exists(), Path(other).exists()) == (False, True)
        for process in processes:
            process.communicate()
