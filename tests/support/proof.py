"""Sets the size of proofs: each run checks a part, and a run with --prove checks everything.

A test is a proof if it uses the fixture `proof` or `only_long`, or tests a property with Hypothesis,
which tries more examples with --prove. It gets the mark `proof`, so that `-m proof` selects it. With
--prove, the summary lists each proof with its result, and ends with one sentence about all proofs. It
uses only the test reports, which may come from other processes.

A test with the mark `slow` runs only with --prove or --slow, and is also a proof. In a file or class
of slow tests, tests with the mark `smoke` run in every run.
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
# A proof may be long, runs beside others, and may be on a slow machine. Shorter runs find hangs.
_LONG_TIMEOUT_S = 2 * 3600


class Proof:
    """Contains the size of one test's proof, and counts the cases that it has checked."""

    def __init__(self, node: pytest.Item, *, long: bool, slow: bool) -> None:
        self._node = node
        self.long = long
        self.slow = slow

    def size(self, quick: int, long: int, *, smoke: int | None = None) -> int:
        """Returns `long` with --prove, `quick` with --slow, and otherwise `smoke`, or `quick` if `smoke` is
        not given."""
        if self.long:
            return long
        return quick if self.slow or smoke is None else smoke

    def count(self, what: str, number: int = 1, *, of: int | None = None) -> None:
        """Adds to a count of the summary, over all tests. `of` is the count that is expected at the end."""
        self._node.user_properties.append((TALLY + what, (number, of)))

    def row(self, table: str, **cells: str) -> None:
        """Adds a row to a table of the summary."""
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
    """Ignores files in which all tests are slow, so that they are not imported. A file that the command
    line names is collected, and shows why its tests are skipped."""
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
    """Marks proofs before pytest selects tests by marks, and sorts the tests after all other plugins."""
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
        # A proof with few cases may have long cases. These begin early, so that the processes
        # end at about the same time; the short cases of other proofs fill the gaps.
        cases = Counter(proof_of(item.nodeid) for item in items)
        items.sort(key=lambda item: cases[proof_of(item.nodeid)])
        # Each process begins with its own contiguous part of the list, so distribute the items.
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
