"""Tests the tests: plants each bug into a copy of the source, and checks that a test fails.

The tests that a bug names run on the changed copy, in a separate process.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.proofs import planted_bugs, planted_price_bugs, planted_provider_bugs
from tests.proofs.bug import Bug, LocationError, SqlBug
from tests.support.data_folders import data_folder
from tests.support.proof import Proof

BUGS = {**planted_bugs.BUGS, **planted_price_bugs.PRICE_BUGS, **planted_provider_bugs.PROVIDER_BUGS}
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
TESTS = "tests/"
TESTS_FAILED = 1
# The number of parts of the run without a bug. The parts can run on several cores.
PARTS = 8
TIMEOUT_S = 900
# Matches a test that failed, or whose fixture failed, in pytest's final list.
CATCHER = re.compile(r"^(?:FAILED|ERROR) tests/(\S+::\S+)", re.MULTILINE)

pytestmark = pytest.mark.timeout(3 * TIMEOUT_S)


@dataclass(frozen=True)
class Copy:
    """A copy of the source, in which one bug at a time is planted."""

    source: Path
    # Python's folder for compiled files, so that each bug needs the compilation of few files only.
    compiled: Path
    # The folder in which the tests create their databases.
    scratch: Path

    def run_tests(self, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        own = {
            "PYTHONPATH": str(self.source),
            "PYTHONPYCACHEPREFIX": str(self.compiled),
            "PYTHONDONTWRITEBYTECODE": "",
            "TMPDIR": str(self.scratch),
        }
        return subprocess.run(
            [
                sys.executable,
                *(
                    "-m",
                    "pytest",
                    "-q",
                    "-x",
                    "--slow",
                    "-p",
                    "no:randomly",
                    "-p",
                    "no:cacheprovider",
                ),
                # After this timeout, pytest stops its database. A killed pytest would not stop it.
                f"--session-timeout={TIMEOUT_S}",
                *(TESTS + name for name in tests),
            ],
            cwd=ROOT,
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT_S,
            check=False,
        )

    @contextmanager
    def changed(self, texts: Mapping[Path, str]) -> Iterator[None]:
        """Replaces the texts of these files in the copy, and restores them after the block."""
        for path, text in texts.items():
            (self.source / path).write_text(text)
        try:
            yield
        finally:
            for path in texts:
                shutil.copy2(SOURCE / path, self.source / path)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    with data_folder() as scratch:
        yield Copy(folder / "src", folder / "compiled", scratch)


def test_every_bug_can_be_planted() -> None:
    """Finds bugs whose location is missing, ambiguous or unchanged."""
    refused = []
    for name, bug in BUGS.items():
        try:
            bug.changed_trees(SOURCE)
        except (LocationError, SyntaxError) as error:
            refused.append(f"{name}: {error}")
    assert refused == []


def test_every_bug_names_tests_that_exist() -> None:
    """Finds test files that were moved, before `--prove` does."""
    assert [name for name, bug in BUGS.items() if not bug.caught_by] == []
    named = {(name, test) for name, bug in BUGS.items() for test in bug.caught_by}
    assert [pair for pair in sorted(named) if not (ROOT / TESTS / pair[1]).is_file()] == []


def test_the_bugs_in_contributing_are_planted() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = text.partition("```python planted-bugs\n")[2].partition("```")[0]
    bugs = eval(f"{{{shown}}}", {"Bug": Bug, "SqlBug": SqlBug})
    assert bugs
    assert bugs == {name: BUGS.get(name) for name in bugs}


@pytest.mark.usefixtures("only_long")
def test_the_copy_is_what_is_tested(copy: Copy) -> None:
    with copy.changed({Path("tollkeeper/__init__.py"): "raise ZeroDivisionError\n"}):
        assert "ZeroDivisionError" in copy.run_tests(("core/test_pricing.py",)).stderr


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("part", range(PARTS))
def test_without_a_bug_everything_passes(copy: Copy, proof: Proof, part: int) -> None:
    """A test that fails without a bug would seem to catch every bug."""
    used = sorted({test for bug in BUGS.values() for test in bug.caught_by})
    done = copy.run_tests(tuple(used[part::PARTS]))
    proof.count(
        "files of tests that pass without a planted bug",
        len(used[part::PARTS]) if done.returncode == 0 else 0,
        of=len(used),
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(copy: Copy, proof: Proof, name: str) -> None:
    bug = BUGS[name]
    with copy.changed(bug.planted(SOURCE)):
        done = copy.run_tests(bug.caught_by)
    by = CATCHER.search(done.stdout) if done.returncode == TESTS_FAILED else None
    proof.count("planted bugs caught", int(by is not None), of=len(BUGS))
    proof.row("planted bugs", bug=name, caught_by=by[1] if by else "NOTHING")
    assert by is not None, done.stdout[-3000:] + done.stderr[-3000:]
