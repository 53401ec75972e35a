"""How far a proof goes: a slice of it in every run, all of it with --prove, and what was run."""

from collections import Counter

import pytest

_TALLY = "proof: "
_ROW = "row of: "
# A proof may take as long as it takes; a hang is found by the shorter runs.
_LONG_TIMEOUT_S = 4 * 3600


class Proof:
    """The size of one test's proof, and the count of what it went through."""

    def __init__(self, node: pytest.Item, *, long: bool) -> None:
        self._node = node
        self.long = long

    def size(self, quick: int, long: int) -> int:
        return long if self.long else quick

    def count(self, what: str, number: int = 1) -> None:
        """Shown in the summary, added up over all tests."""
        self._node.user_properties.append((_TALLY + what, number))

    def row(self, table: str, **cells: str) -> None:
        """A row of a table that the summary shows."""
        self._node.user_properties.append((_ROW + table, cells))


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Proof:
    return Proof(request.node, long=request.config.getoption("--prove"))


@pytest.fixture
def only_long(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--prove"):
        pytest.skip("only with --prove")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--prove", action="store_true", default=False, help="run every proof in its full size"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--prove"):
        for item in items:
            if "proof" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.timeout(_LONG_TIMEOUT_S), append=False)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not config.getoption("--prove"):
        return
    tally: Counter[str] = Counter()
    tables: dict[str, list[dict[str, str]]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                continue
            for name, value in getattr(report, "user_properties", ()):
                if name.startswith(_TALLY):
                    tally[name.removeprefix(_TALLY)] += value
                elif name.startswith(_ROW):
                    tables.setdefault(name.removeprefix(_ROW), []).append(value)
    terminalreporter.section("proved")
    for what, number in sorted(tally.items()):
        terminalreporter.write_line(f"{number:>12,}  {what}")
    for title, rows in sorted(tables.items()):
        terminalreporter.section(title)
        for line in _lines(rows):
            terminalreporter.write_line(line)


def _lines(rows: list[dict[str, str]]) -> list[str]:
    """The table with its headings, in columns."""
    table = [list(rows[0]), *sorted(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
