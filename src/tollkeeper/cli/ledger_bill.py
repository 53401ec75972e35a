"""Implements `tollkeeper ledger reconcile`, which compares a provider's bill, a list of charges by day
and model, with the ledger."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.cli.command import Invocation, run_with_services
from tollkeeper.cli.output import printable
from tollkeeper.cli.report import Report, show_report
from tollkeeper.domain.errors import InvalidRequest, StateConflict
from tollkeeper.services.ledger.bill import (
    BillComparison,
    BillDay,
    bill_columns,
    day_number,
    named_values,
    plain_number,
    read_bill,
    shown_day,
    tolerance_of,
)
from tollkeeper.storage.backend_usage import ComparedFigure, Tolerance

T = TypeVar("T")
# The table shows this number of differing days and models; the JSON has all of them.
_SHOWN_MAX = 200


def _option(read: Callable[[str], T]) -> Callable[[str], T]:
    """Turns `read` into the parser of an option. Invalid text then gives a usage error."""

    def parse(text: str) -> T:
        try:
            return read(text)
        except InvalidRequest as exc:
            raise typer.BadParameter(exc.message) from None

    return parse


def _pairs(text: str) -> dict[str, str]:
    return named_values(text, "columns")


BackendArgument = Annotated[
    str,
    typer.Argument(
        metavar="BACKEND", help="The name of the backend in the settings.", show_default=False
    ),
]
FileArgument = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="The provider's bill, a CSV file.", show_default=False),
]
ColumnsOption = Annotated[
    dict[str, str],
    typer.Option(
        metavar="NAME=COLUMN,…",
        help="The columns of the file: day, model, and the figures to compare. Figures are requests, "
        "input_tokens, uncached_input_tokens, cached_input_tokens, cache_write_tokens, "
        "output_tokens, cost (USD).",
        parser=_option(_pairs),
        show_default=False,
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OURS=THEIRS",
        help="The provider's name (THEIRS) for a model of the settings (OURS). May be repeated.",
        show_default="`upstream_model`",
    ),
]
ToleranceOption = Annotated[
    Tolerance | None,
    typer.Option(
        metavar="0.5%|USD",
        help="Ignore differences up to this percentage, or up to this amount of USD for costs.",
        parser=_option(tolerance_of),
        show_default="none",
    ),
]
DayOption = Annotated[
    int | None,
    typer.Option(
        metavar="DAY",
        help="The first (--since) or last (--until) day to compare, YYYY-MM-DD.",
        parser=_option(day_number),
        show_default="the first or last day in the file",
    ),
]
ReportedOption = Annotated[
    bool,
    typer.Option(
        "--reported",
        help="Compare the bill with the costs that the backend reported instead of the charges.",
    ),
]


def ledger_reconcile(
    invocation: Invocation,
    backend: BackendArgument,
    file: FileArgument,
    columns: ColumnsOption,
    model: ModelOption = None,
    tolerance: ToleranceOption = None,
    since: DayOption = None,
    until: DayOption = None,
    reported: ReportedOption = False,
) -> None:
    """Compare a provider's bill with the ledger.

    The figures are compared by UTC day and model. The command fails if a figure differs."""
    names: dict[str, str] = {}
    for entry in model or []:
        names.update(_option(_pairs)(entry))
    named = bill_columns(columns)
    with file.open(encoding="utf-8", newline="") as lines:
        found = run_with_services(
            invocation,
            lambda services: services.bill_reconciliation.ledger_reconcile(
                backend,
                read_bill(lines, named),
                catalog=services.catalog.catalog,
                names=names,
                tolerance=tolerance or Tolerance(),
                days=(since, until),
                reported=reported,
            ),
        )
    differences = found.differences
    show_report(Report(_content(backend, found), _picture(found)), as_json=invocation.as_json)
    if differences:
        raise StateConflict(f"The bill and the ledger differ in {len(differences)} places.")


def _content(backend: str, found: BillComparison) -> dict[str, Any]:
    return {
        "ok": not found.differences,
        "backend": backend,
        "since": shown_day(found.first_day),
        "until": shown_day(found.last_day),
        "compared": len(found.days),
        "differences": [_entry(entry) for entry in found.differences],
        "totals": _figures(found.totals),
    }


def _entry(entry: BillDay) -> dict[str, Any]:
    return {
        "day": shown_day(entry.day),
        "model": entry.model,
        "kind": entry.kind,
        "figures": _figures(entry.figures),
        "unsettled_requests": entry.unsettled_requests,
    }


def _figures(pairs: tuple[ComparedFigure, ...]) -> dict[str, Any]:
    return {
        pair.figure: {
            "bill": None if pair.bill is None else plain_number(pair.bill),
            "books": None if pair.books is None else plain_number(pair.books),
            "difference": plain_number(pair.difference),
            "differs": pair.differs,
        }
        for pair in pairs
    }


def _picture(found: BillComparison) -> RenderableType:
    table = Table(
        *("day", "model", "", "figure", "bill", "ledger", "difference"),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for entry in found.differences[:_SHOWN_MAX]:
        for pair in entry.figures:
            if pair.differs:
                table.add_row(*_cells(shown_day(entry.day), entry.model, entry.kind, pair))
    for pair in found.totals:
        table.add_row(*_cells("total", "", "differs" if pair.differs else "same", pair))
    days = f"{shown_day(found.first_day)} to {shown_day(found.last_day)}"
    lines = [f"{len(found.days)} days and models compared, {days}."]
    if len(found.differences) > _SHOWN_MAX:
        lines.append(f"{len(found.differences) - _SHOWN_MAX} more differ; --json has all of them.")
    unsettled = sum(entry.unsettled_requests for entry in found.days)
    if unsettled:
        lines.append(
            f"{unsettled} requests in the ledger are unsettled; their cost is not included."
        )
    return Group(table, Text("\n".join(lines)))


def _cells(day: str, model: str, kind: str, pair: ComparedFigure) -> tuple[str | Text, ...]:
    return (
        day,
        Text(printable(model)),
        kind,
        pair.figure,
        "-" if pair.bill is None else plain_number(pair.bill),
        "-" if pair.books is None else plain_number(pair.books),
        plain_number(pair.difference),
    )
