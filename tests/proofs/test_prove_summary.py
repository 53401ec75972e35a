"""Tests that the summary of `--prove` is correct, also if several processes run the proofs."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.nested_pytest import run_pytest, write_tests

pytestmark = pytest.mark.slow

# Matches a duration of less than 1000 seconds, for example "1.2 s".
_TIME = re.compile(r"\b\d+\.\d s\b")
_CONFTEST = 'pytest_plugins = ["tests.support.proof"]\n'
_GOOD = """
import pytest

@pytest.mark.parametrize("name", "abc")
def test_a_bug_is_caught(proof, name):
    proof.count("bugs caught", of=3)
    proof.row("scorecard", attack=name, refusals="0")

def test_histories(proof):
    proof.count("histories", proof.size(quick=2, long=12_345))
    proof.count("crashes", 1)
    proof.count("crashes", 1)
    proof.row("databases", database="first", seeds="1")
    proof.row("databases", database="second", seeds="2")

@pytest.mark.usefixtures("only_long")
def test_only_long():
    pass

def test_no_proof():
    pass
"""
_SLOW = """
import pytest

pytestmark = pytest.mark.slow

def test_slow():
    pass

def test_also_slow(proof):
    proof.count("cases", proof.size(quick=1, long=2))

@pytest.mark.smoke
def test_smoke():
    pass
"""
_BAD = """
import pytest

@pytest.mark.parametrize("name", "abc")
def test_a_bug_is_caught(proof, name):
    proof.count("bugs caught", int(name != "b"), of=3)
    assert name != "b"

@pytest.fixture
def broken():
    yield
    raise ValueError

def test_ends_badly(proof, broken):
    pass
"""
_SKIPPED = """
import pytest

def test_runs(proof):
    pass

def test_needs_a_tool(proof):
    pytest.skip("a tool is not installed")
"""


def _run(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    write_tests(folder, _CONFTEST, tests)
    return run_pytest(folder, "-p", "pytest_timeout", "--strict-markers", *options)


def _lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("processes", [(), ("-n", "2", "--dist", "worksteal")])
def test_everything_ran_and_passed(tmp_path: Path, processes: tuple[str, ...]) -> None:
    done = _run(tmp_path, _GOOD, "--prove", "-m", "proof", *processes)
    assert done.returncode == 0, done.stdout
    lines = [_TIME.sub("TIME", line) for line in _lines(done)]
    begin = lines.index("proof result time proved")
    assert lines[begin + 1 : begin + 4] == [
        "test_it.py::test_a_bug_is_caught 3 passed TIME 3 of 3 bugs caught",
        "test_it.py::test_histories 1 passed TIME 12,345 histories; 2 crashes",
        "test_it.py::test_only_long 1 passed TIME",
    ]
    begin = lines.index("attack refusals time")
    assert lines[begin + 1 : begin + 4] == ["a 0 TIME", "b 0 TIME", "c 0 TIME"]
    begin = lines.index("database seeds")
    assert lines[begin + 1 : begin + 3] == ["first 1", "second 2"]
    assert "Proved: 3 proofs, 5 cases; all ran in full size, and all passed." in lines


def test_a_failure_is_named(tmp_path: Path) -> None:
    done = _run(tmp_path, _BAD, "--prove", "-n", "2")
    assert done.returncode == 1, done.stdout
    lines = _lines(done)
    [caught] = (line for line in lines if line.startswith("test_it.py::test_a_bug_is_caught"))
    assert " 2 passed, 1 FAILED " in caught
    assert caught.endswith(" 2 of 3 bugs caught")
    assert "NOT PROVED: 2 proofs, 4 cases; 2 failed, exit status 1." in lines
    assert "failed: test_it.py::test_a_bug_is_caught[b]" in lines
    assert "failed: test_it.py::test_ends_badly" in lines
    assert "not all: bugs caught: 2 of 3" in lines


def test_a_part_of_the_cases_is_no_proof(tmp_path: Path) -> None:
    done = _run(tmp_path, _GOOD, "--prove", "-k", "caught and (a] or b])")
    assert done.returncode == 0, done.stdout
    lines = _lines(done)
    assert "Proved in part: 1 proof, 2 cases; none failed, 0 did not run." in lines
    assert "not all: bugs caught: 2 of 3" in lines


def test_what_did_not_run_is_named(tmp_path: Path) -> None:
    done = _run(tmp_path, _SKIPPED, "--prove")
    assert done.returncode == 0, done.stdout
    lines = _lines(done)
    assert "Proved in part: 2 proofs, 2 cases; none failed, 1 did not run." in lines
    assert "did not run: test_it.py::test_needs_a_tool: a tool is not installed" in lines


def test_nothing_chosen_is_not_proved(tmp_path: Path) -> None:
    done = _run(tmp_path, _GOOD, "--prove", "-k", "nothing")
    assert "NOT PROVED: 0 proofs, 0 cases; 0 failed, exit status 5." in _lines(done)


def test_without_the_option_there_is_no_summary(tmp_path: Path) -> None:
    done = _run(tmp_path, _GOOD)
    assert done.returncode == 0, done.stdout
    assert "verdict" not in done.stdout
    assert "5 passed, 1 skipped" in done.stdout


def test_slow_tests_are_proofs(tmp_path: Path) -> None:
    """A file of slow tests has one row, which does not count tests with the mark `smoke`."""
    done = _run(tmp_path, _SLOW, "--prove", "-m", "proof")
    lines = [_TIME.sub("TIME", line) for line in _lines(done)]
    assert "test_it.py 2 passed TIME 2 cases" in lines
    assert "Proved: 1 proof, 2 cases; all ran in full size, and all passed." in lines


@pytest.mark.smoke
def test_slow_tests_run_if_they_are_asked_for(tmp_path: Path) -> None:
    assert "1 passed, 2 skipped" in _run(tmp_path, _SLOW).stdout
    done = _run(tmp_path, _SLOW, "--slow", "-rs")
    assert "3 passed" in done.stdout
    assert "verdict" not in done.stdout
