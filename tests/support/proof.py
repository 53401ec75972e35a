"""How far a proof goes: a slice of it in every run, all of it with --prove, and what was run.

A test is a proof if it takes the fixture `proof` or `only_long`, or tries examples of a property, which
are more with --prove. It then has the mark of that name, so that `-m proof` chooses them. With --prove
the summary lists each proof with its result, and ends with one sentence on all of them. It reads
nothing but the reports of tests, which also come from other processes.

A test with the mark `slow` runs only with --prove or --slow, and is a proof too. A file or class of
slow tests can keep some for every run: they have the mark `smoke`.
"""

import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.proof_summary import ROW, SLOW, TALLY, Summary, proof_of

_MARK = "proof"
_SMOKE = "smoke"
_FIXTURES = {"proof", "only_long"}
_SLOW_FILE = re.compile(rf"^pytestmark = \[?pytest\.mark\.{SLOW}\b", re.MULTILINE)
_SKIP_SLOW = pytest.mark.skip(reason="slow: only with --prove or --slow")
# A proof may take long, beside others and on a slow machine; a hang is found by the shorter runs.
_LONG_TIMEOUT_S = 2 * 3600


class Proof:
    """The size of one test's proof, and the count of what it went through."""

    def __init__(self, node: pytest.Item, *, long: bool, slow: bool) -> None:
        self._node = node
        self.long = long
        self.slow = slow

    def size(self, quick: int, long: int, *, smoke: int | None = None) -> int:
        """Return `long` with --prove. `smoke` is for runs without --slow, if `quick` takes too long
        for them."""
        if self.long:
            return long
        return quick if self.slow or smoke is None else smoke

    def count(self, what: str, number: int = 1, *, of: int | None = None) -> None:
        """Shown in the summary, added up over all tests. `of` is how many it is when all is well."""
        self._node.user_properties.append((TALLY + what, (number, of)))

    def row(self, table: str, **cells: str) -> None:
        """A row of a table that the summary shows."""
        self._node.user_properties.append((ROW + table, cells))


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Proof:
    option = request.config.getoption
    return Proof(request.node, long=option("--prove"), slow=option("--slow"))


@pytest.fixture(scope="session")
def only_long(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--prove"):
        pytest.skip("only with --prove")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--prove", action="store_true", default=False, help="run every proof in its full size"
    )
    parser.addoption(
        "--slow",
        action="store_true",
        default=False,
        help="run slow tests, and proofs in short size",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_MARK}: is longer with --prove, and is in its summary")
    config.addinivalue_line("markers", f"{SLOW}: runs only with --prove or --slow")
    config.addinivalue_line("markers", f"{_SMOKE}: runs always, also in a file of slow tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files in which all tests are slow, so that they are not imported. A file that the
    command line names is read, and says why its tests are skipped."""
    if _runs_slow(config) or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    if _SLOW_FILE.search(text) is None or f"mark.{_SMOKE}" in text:
        return None
    named = (Path(name.partition("::")[0]).resolve() for name in config.args)
    return None if collection_path in named else True


def _runs_slow(config: pytest.Config) -> bool:
    return bool(config.getoption("--prove") or config.getoption("--slow"))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Marks proofs before pytest chooses by marks, and orders what is left when all others are done."""
    prove = config.getoption("--prove")
    for item in items:
        fixtures = _FIXTURES & set(getattr(item, "fixturenames", ()))
        is_slow = SLOW in item.keywords and _SMOKE not in item.keywords
        if is_slow and not _runs_slow(config):
            item.add_marker(_SKIP_SLOW)
        if is_slow or fixtures or hasattr(getattr(item, "obj", None), "hypothesis"):
            item.add_marker(_MARK)
        if prove and "proof" in fixtures:
            item.add_marker(pytest.mark.timeout(_LONG_TIMEOUT_S), append=False)
    yield
    if prove:
        # A proof in few cases can be long. It begins early, so that processes that share the proofs
        # end at about the same time; the short cases of proofs that have many fill the gaps.
        cases = Counter(proof_of(item.nodeid) for item in items)
        items.sort(key=lambda item: cases[proof_of(item.nodeid)])
        # Each process begins with its own contiguous part of the list, so deal the items out.
        processes = getattr(config, "workerinput", {}).get("workercount", 1)
        items[:] = [item for first in range(processes) for item in items[first::processes]]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    if not config.getoption("--prove") or config.getoption("--collect-only"):
        return
    every = (report for reports in terminalreporter.stats.values() for report in reports)
    summary = Summary((one for one in every if isinstance(one, pytest.TestReport)), _MARK)
    for title, lines in summary.sections():
        _write(terminalreporter, title, lines)
    _write(terminalreporter, "verdict", summary.verdict(exitstatus))


def _write(reporter: pytest.TerminalReporter, title: str, lines: list[str]) -> None:
    reporter.section(title)
    for line in lines:
        reporter.write_line(line)
