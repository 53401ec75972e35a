"""A test of the tests: each of these bugs, planted into a copy of the source, must be caught.

A mistake is a change of the source's text. The tests named beside it run on the changed copy, in a
process of their own, and at least one of them has to fail.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Copy:
    """A copy of the source, in which one file at a time is changed."""

    source: Path
    # Where Python keeps what it compiles, so that a bug costs the compilation of one file only.
    compiled: Path

    def run_tests(self, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        own = {
            "PYTHONPATH": str(self.source),
            "PYTHONPYCACHEPREFIX": str(self.compiled),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        return subprocess.run(
            [
                sys.executable,
                *("-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider"),
                *(TESTS + name for name in tests),
            ],
            cwd=ROOT,
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """Inside the block the file has this text."""
        path = self.source / "tollkeeper" / file
        path.write_text(text)
        try:
            yield
        finally:
            shutil.copy2(ROOT / "src" / "tollkeeper" / file, path)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return Copy(folder / "src", folder / "compiled")


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
def test_without_a_bug_everything_passes(copy: Copy) -> None:
    """Also checks that the copy is what is tested: a broken copy must fail."""
    used = sorted({test for bug in BUGS.values() for test in bug.caught_by})
    done = copy.run_tests(tuple(used))
    assert done.returncode == 0, done.stdout[-3000:]
    with copy.changed("__init__.py", "raise ZeroDivisionError\n"):
        assert "ZeroDivisionError" in copy.run_tests(("domain/test_pricing.py",)).stderr


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(copy: Copy, proof: Proof, name: str) -> None:
    bug = BUGS[name]
    with copy.changed(bug.file, planted(bug, copy.source)):
        done = copy.run_tests(bug.caught_by)
    assert done.returncode == TESTS_FAILED, done.stdout[-3000:] + done.stderr[-3000:]
    assert "AssertionError" in done.stdout or "FAILED" in done.stdout, done.stdout[-3000:]
    proof.count("planted bugs caught")
