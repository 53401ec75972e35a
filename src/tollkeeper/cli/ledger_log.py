"""Implements `tollkeeper ledger compare-log`, which compares the request log with the ledger."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.cli.command import Invocation, run_with_services
from tollkeeper.cli.output import printable
from tollkeeper.cli.progress import progress
from tollkeeper.cli.report import Report, show_report
from tollkeeper.domain.errors import InvalidRequest, StateConflict
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.ledger.log_comparison import (
    DIFFERENCES_MAX,
    LogComparison,
    LogDifference,
    Problem,
)
from tollkeeper.services.ledger.log_file import LogReading

# Tables show at most this many rows; the JSON has all stored ones.
_SHOWN_MAX = 200
_WORDS = {
    Problem.MISSING: "is not on the books",
    Problem.NOT_SETTLED: "is not settled on the books",
    Problem.OTHER_COST: "has another cost on the books",
    Problem.UNKNOWN_KEY: "is not on the books, nor is its key: it cannot be booked",
    Problem.MONTH_CLOSED: "is not on the books, and its month is closed: it cannot be booked",
}


def ledger_compare_log(
    invocation: Invocation,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="The log of a gateway in JSON lines; it may be compressed with gzip.",
            show_default=False,
        ),
    ],
    book: Annotated[
        bool, typer.Option("--book", help="Record the missing calls in the ledger, each once.")
    ] = False,
) -> None:
    """Compare the request log with the ledger, call by call. Fails if something differs."""
    with progress("Comparing", quiet=invocation.as_json) as tell:
        reading = LogReading(files, tell)
        found = run_with_services(
            invocation,
            lambda services: services.request_log_comparison.ledger_compare_log(
                reading.calls(), book=book
            ),
        )
    if not found.calls and not reading.other_lines:
        reason = f" {reading.unreadable[0]}." if reading.unreadable else ""
        raise InvalidRequest(f"The files have no line of a request log in JSON.{reason}")
    report = Report(_content(found, reading), _picture(found, reading, book=book))
    show_report(report, as_json=invocation.as_json)
    if found.unbooked or reading.unreadable_lines:
        raise StateConflict(
            f"{found.unbooked} calls of the log differ from the ledger, and "
            f"{reading.unreadable_lines} lines cannot be read."
        )


def _content(found: LogComparison, reading: LogReading) -> dict[str, Any]:
    return {
        "ok": not found.unbooked and not reading.unreadable_lines,
        "calls": found.calls,
        "calls_of_dropped_months": found.dropped,
        "booked": found.booked,
        "booked_usd": usd_from_picousd(found.booked_picousd),
        "differences": [_entry(each) for each in found.differences.values()],
        "differences_left_out": found.left_out,
        "other_lines": reading.other_lines,
        "unreadable_lines": reading.unreadable_lines,
        "unreadable": reading.unreadable,
    }


def _entry(found: LogDifference) -> dict[str, Any]:
    call, books = found.call, found.books
    return {
        "request_id": call.key.id,
        "organization_id": call.key.organization_id,
        "project_id": call.key.project_id,
        "api_key_id": call.key.key_id,
        "model": call.model,
        "problem": found.problem,
        "logged_cost": _usd(call.cost_picousd),
        "ledger_cost": _usd(books.cost_picousd),
        "ledger_settlement": books.status,
        "booked": found.is_booked,
    }


def _picture(found: LogComparison, reading: LogReading, *, book: bool) -> RenderableType:
    table = Table(
        *("request", "difference", "log", "ledger", "booked"), box=SIMPLE_HEAD, pad_edge=False
    )
    for each in list(found.differences.values())[:_SHOWN_MAX]:
        table.add_row(
            str(each.call.key.id),
            _WORDS[each.problem],
            _usd(each.call.cost_picousd) or "unknown",
            _usd(each.books.cost_picousd) or "-",
            "yes" if each.is_booked else "no",
        )
    lines = [f"{found.calls} calls were compared."]
    hidden = len(found.differences) + found.left_out - _SHOWN_MAX
    if hidden > 0:
        lines.append(f"{hidden} more differ; --json has up to {DIFFERENCES_MAX} of them.")
    if found.dropped:
        lines.append(f"{found.dropped} calls are of months that were dropped: see their exports.")
    lines += [printable(place) for place in reading.unreadable]
    if found.booked:
        lines.append(f"{found.booked} were booked, {usd_from_picousd(found.booked_picousd)} USD.")
    elif found.unbooked and not book:
        lines.append("Nothing was booked: --book books the calls whose end is missing.")
    text = Text("\n".join(lines))
    return Group(table, text) if found.differences else text


def _usd(picousd: int | None) -> str | None:
    return None if picousd is None else usd_from_picousd(picousd)
