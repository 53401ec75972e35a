"""Tests that the report of a failed test shows what may have disturbed the test."""

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_CONFTEST = """
import pytest
from tests.support import disturbances

pytest_plugins = ["tests.support.disturbances"]

@pytest.fixture
def data_dir(tmp_path):
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "server.log").write_text("LOG:  the server was restarted")
    return tmp_path

@pytest.fixture(autouse=True)
def _sensitive(monkeypatch):
    monkeypatch.setattr(disturbances, "_PAUSE_S_MIN", 0.1)
"""
_TESTS = """
import ctypes
import time

def test_passes(data_dir):
    pass

def test_fails(data_dir):
    ctypes.PyDLL(None).sleep(2)  # keeps the interpreter lock
    time.sleep(1)
    assert False
"""


def test_a_pause_and_the_log_of_the_database_are_shown(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_disturbed.py").write_text(_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("LOG:  the server was restarted") == 1
    assert ": paused for " in done.stdout
