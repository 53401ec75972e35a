"""Tests that the report of a failed test shows what may have disturbed the test."""

from pathlib import Path

from tests.support.nested_pytest import run_pytest, write_tests

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
    write_tests(tmp_path, _CONFTEST, _TESTS)
    done = run_pytest(tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("LOG:  the server was restarted") == 1
    assert ": paused for " in done.stdout
