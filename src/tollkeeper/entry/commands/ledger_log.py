"""`tollkeeper ledger compare-log`: compares a request log's calls with the ledger."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.core.errors import InvalidRequest, StateConflict
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.entry.commands.command import Invocation, run_with_services
from tollkeeper.entry.commands.output import printable
from tollkeeper.entry.commands.progress import progress
from tollkeeper.entry.commands.report import Report, show_report
from tollkeeper.money.log_comparison.log_file import LogReading
from tollkeeper.money.log_comparison.service import (
    DIFFERENCES_MAX,
    LogComparison,
    LogDifference,
    Problem,
)

# In the table. The JSON has at most DIFFERENCES_MAX.
_SHOWN_MAX = 200
_PROBLEM_TEXTS = {
    Problem.MISSING: "is not in the ledger",
    Problem.NOT_SETTLED: "is not settled in the ledger",
    Problem.OTHER_COST: "has another cost in the ledger",
    Problem.UNKNOWN_KEY: "is not in the ledger and cannot be booked: its key does not exist",
    Problem.MONTH_CLOSED: "is not in the ledger and cannot be booked: its month is closed",
}


def ledger_compare_log(
    invocation: Invocation,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="The log of a gateway: a file of JSON lines, which may be compressed with gzip.",
            show_default=False,
        ),
    ],
    book: Annotated[
        bool,
        typer.Option(
            "--book",
            help="Book calls that are missing or not settled in the ledger, with the cost in the log.",
        ),
    ] = False,
) -> None:
    """Compare each call in the request log with the ledger.

    The command fails if a call differs and was not booked, or if a line of the log cannot be read."""
    with progress("Comparing", quiet=invocation.as_json) as report_progress:
        reading = LogReading(files, report_progress)
        comparison = run_with_services(
            invocation,
            lambda services: services.request_log_comparison.ledger_compare_log(
                reading.calls(), book=book
            ),
        )
    if not comparison.calls and not reading.other_lines:
        reason = f" {reading.unreadable[0]}." if reading.unreadable else ""
        raise InvalidRequest(f"The files have no line of a request log in JSON.{reason}")
    report = Report(_content(comparison, reading), _picture(comparison, reading, book=book))
    show_report(report, as_json=invocation.as_json)
    if comparison.remaining_differences or reading.unreadable_lines:
        raise StateConflict(
            f"{comparison.remaining_differences} calls of the log differ from the ledger, and "
            f"{reading.unreadable_lines} lines cannot be read."
        )


def _content(comparison: LogComparison, reading: LogReading) -> dict[str, Any]:
    return {
        "ok": not comparison.remaining_differences and not reading.unreadable_lines,
        "calls": comparison.calls,
        "calls_of_dropped_months": comparison.dropped,
        "booked": comparison.booked,
        "booked_usd": usd_from_picousd(comparison.booked_picousd),
        "differences": [_entry(difference) for difference in comparison.differences.values()],
        "differences_left_out": comparison.left_out,
        "other_lines": reading.other_lines,
        "unreadable_lines": reading.unreadable_lines,
        "unreadable": reading.unreadable,
    }


def _entry(difference: LogDifference) -> dict[str, Any]:
    call, ledger_state = difference.call, difference.ledger_state
    return {
        "request_id": call.key.id,
        "organization_id": call.key.organization_id,
        "project_id": call.key.project_id,
        "api_key_id": call.key.key_id,
        "model": call.model,
        "problem": difference.problem,
        "logged_cost": _usd(call.cost_picousd),
        "ledger_cost": _usd(ledger_state.cost_picousd),
        "ledger_settlement": ledger_state.status,
        "booked": difference.is_booked,
    }


def _picture(comparison: LogComparison, reading: LogReading, *, book: bool) -> RenderableType:
    table = Table(
        *("request", "difference", "log", "ledger", "booked"), box=SIMPLE_HEAD, pad_edge=False
    )
    for difference in list(comparison.differences.values())[:_SHOWN_MAX]:
        table.add_row(
            str(difference.call.key.id),
            _PROBLEM_TEXTS[difference.problem],
            _usd(difference.call.cost_picousd) or "unknown",
            _usd(difference.ledger_state.cost_picousd) or "-",
            "yes" if difference.is_booked else "no",
        )
    lines = [f"{comparison.calls} calls were compared."]
    hidden = len(comparison.differences) + comparison.left_out - _SHOWN_MAX
    if hidden > 0:
        lines.append(
            f"{hidden} more calls differ. --json shows the first {DIFFERENCES_MAX} differences."
        )
    if comparison.dropped:
        lines.append(
            f"{comparison.dropped} calls are in dropped months: see the exports of these months."
        )
    lines += [printable(place) for place in reading.unreadable]
    if comparison.booked:
        lines.append(
            f"{comparison.booked} calls were booked, "
            f"{usd_from_picousd(comparison.booked_picousd)} USD in total."
        )
    elif comparison.remaining_differences and not book:
        lines.append("Nothing was booked: --book books calls that are missing or not settled.")
    text = Text("\n".join(lines))
    return Group(table, text) if comparison.differences else text


def _usd(picousd: int | None) -> str | None:
    return None if picousd is None else usd_from_picousd(picousd)
