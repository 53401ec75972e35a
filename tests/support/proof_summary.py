"""Formats the summary of a run with --prove: tables of proofs, a table of all proofs, and the verdict."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import pytest

TALLY = "proof: "
ROW = "row of: "
SLOW = "slow"


def proof_of(case: str) -> str:
    """Returns the name of the proof to which a case belongs."""
    return case.partition("[")[0]


@dataclass
class Tally:
    """Contains a count, and the expected count if it is known."""

    number: int = 0
    of: int | None = None

    def __str__(self) -> str:
        return f"{self.number:,}" if self.of is None else f"{self.number:,} of {self.of:,}"


@dataclass
class Outcome:
    """Contains the results, the duration and the counts of one proof's cases."""

    cases: dict[str, str] = field(default_factory=dict)
    seconds: float = 0
    tallies: dict[str, Tally] = field(default_factory=dict)

    def add(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        # A case that failed stays failed, even if its teardown passes.
        worst = self.cases.get(report.nodeid)
        if report.outcome != "passed" or worst is None:
            self.cases[report.nodeid] = "failed" if worst == "failed" else report.outcome

    def count(self, what: str, number: int, of: int | None) -> None:
        self.tallies.setdefault(what, Tally(of=of)).number += number

    @property
    def result(self) -> str:
        counted = Counter(self.cases.values())
        names = (("passed", "passed"), ("failed", "FAILED"), ("skipped", "did not run"))
        return ", ".join(f"{counted[name]:,} {said}" for name, said in names if counted[name])

    @property
    def proved(self) -> str:
        return "; ".join(f"{tally} {what}" for what, tally in self.tallies.items())


class Summary:
    """Reads the test reports, which may come from several processes."""

    def __init__(self, reports: Iterable[pytest.TestReport], mark: str) -> None:
        self._proofs: dict[str, Outcome] = {}
        self._reasons: dict[str, str] = {}
        self._failures: set[str] = set()
        self._tables: dict[str, list[dict[str, str]]] = {}
        for report in reports:
            if report.failed:
                self._failures.add(report.nodeid)
            if mark in report.keywords:
                self._add(report)

    def _add(self, report: pytest.TestReport) -> None:
        # There are too many slow tests for one row each, so each file has one row.
        name = report.nodeid.partition("::")[0] if SLOW in report.keywords else report.nodeid
        outcome = self._proofs.setdefault(proof_of(name), Outcome())
        outcome.add(report)
        if report.skipped and isinstance(report.longrepr, tuple):
            self._reasons[report.nodeid] = str(report.longrepr[2]).removeprefix("Skipped: ")
        if report.when != "call":
            return
        rows = []
        for name, value in report.user_properties:
            if name.startswith(TALLY):
                number, of = cast("tuple[int, int | None]", value)
                outcome.count(name.removeprefix(TALLY), number, of)
            elif name.startswith(ROW):
                rows.append((name.removeprefix(ROW), cast("dict[str, str]", value)))
        # If a case has exactly one row, the row shows the duration of the case.
        time = {"time": _seconds(report.duration)} if len(rows) == 1 else {}
        for table, row in rows:
            self._tables.setdefault(table, []).append({**row, **time})

    def sections(self) -> Iterable[tuple[str, list[str]]]:
        for title, rows in sorted(self._tables.items()):
            # The row of a failed case may lack some columns.
            columns = list(dict.fromkeys(column for row in rows for column in row))
            filled = sorted([row.get(column, "") for column in columns] for row in rows)
            yield title, in_columns([columns, *filled])
        if self._proofs:
            rows_of_all = [
                [name, outcome.result, _seconds(outcome.seconds), outcome.proved]
                for name, outcome in sorted(self._proofs.items())
            ]
            yield "proofs", in_columns([["proof", "result", "time", "proved"], *rows_of_all])

    def verdict(self, exit_status: int) -> list[str]:
        """Returns one sentence about the whole run, and a line for each case that failed or did not run."""
        cases = Counter(state for proof in self._proofs.values() for state in proof.cases.values())
        said = f"{_counted(len(self._proofs), 'proof')}, {_counted(cases.total(), 'case')}"
        skipped = cases["skipped"]
        short = [
            f"{name}: {tally}"
            for proof in self._proofs.values()
            for name, tally in proof.tallies.items()
            if tally.of is not None and tally.number != tally.of
        ]
        if exit_status != pytest.ExitCode.OK or self._failures or not self._proofs:
            line = f"NOT PROVED: {said}; {len(self._failures):,} failed, exit status {exit_status}."
        elif skipped or short:
            line = f"Proved in part: {said}; none failed, {skipped:,} did not run."
        else:
            line = f"Proved: {said}; all ran in full size, and all passed."
        failed = [f"failed: {name}" for name in sorted(self._failures)]
        reasons = [f"did not run: {name}: {why}" for name, why in sorted(self._reasons.items())]
        return [line, *failed, *(f"not all: {name}" for name in short), *reasons]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s"


def in_columns(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
