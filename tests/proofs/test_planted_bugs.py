"""A test of the tests: each of these bugs, planted into a copy of the source, must be caught.

A mistake is a change of the source's text. The tests named beside it run on the changed copy, in a
process of their own, and at least one of them has to fail.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proofs import planted_bugs, planted_price_bugs, planted_provider_bugs
from tests.proofs.bug import Bug
from tests.support.proof import Proof

BUGS = {**planted_bugs.BUGS, **planted_price_bugs.PRICE_BUGS, **planted_provider_bugs.PROVIDER_BUGS}
ROOT = Path(__file__).parents[2]
TESTS = "tests/"
TESTS_FAILED = 1
TIMEOUT_S = 900

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)


def planted(bug: Bug, source: Path) -> str:
    """The file's text with the bug in it."""
    path = source / "tollkeeper" / bug.file
    text = path.read_text()
    for right, wrong in ((bug.right, bug.wrong), *bug.also):
        assert text.count(right) == 1, "there is one place for it"
        text = text.replace(right, wrong)
    compile(text, path, "exec")
    return text


def run_tests(source: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider"),
            *(TESTS + name for name in tests),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def copied_source(tmp_path: Path) -> Path:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    return source


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_can_be_planted(name: str) -> None:
    """Finds bugs whose text is no longer in the source."""
    planted(BUGS[name], ROOT / "src")


@pytest.mark.parametrize("name", BUGS)
def test_what_catches_a_bug_is_there(name: str) -> None:
    """A file that moves away is missed here, and not only in the long run."""
    assert BUGS[name].caught_by
    assert [test for test in BUGS[name].caught_by if not (ROOT / TESTS / test).is_file()] == []


@pytest.mark.usefixtures("only_long")
def test_without_a_bug_everything_passes(copied_source: Path) -> None:
    """Also checks that the copy is what is tested: a broken copy must fail."""
    used = sorted({test for bug in BUGS.values() for test in bug.caught_by})
    done = run_tests(copied_source, tuple(used))
    assert done.returncode == 0, done.stdout[-3000:]
    (copied_source / "tollkeeper" / "__init__.py").write_text("raise ZeroDivisionError\n")
    assert "ZeroDivisionError" in run_tests(copied_source, ("domain/test_pricing.py",)).stderr


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(copied_source: Path, proof: Proof, name: str) -> None:
    bug = BUGS[name]
    (copied_source / "tollkeeper" / bug.file).write_text(planted(bug, copied_source))
    done = run_tests(copied_source, bug.caught_by)
    assert done.returncode == TESTS_FAILED, done.stdout[-3000:] + done.stderr[-3000:]
    assert "AssertionError" in done.stdout or "FAILED" in done.stdout, done.stdout[-3000:]
    proof.count("planted bugs caught")
