"""`tollkeeper ledger reconcile`: compares a provider's bill, by day and model, with the ledger."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.core.errors import InvalidRequest, StateConflict
from tollkeeper.entry.commands.command import Invocation, run_with_services
from tollkeeper.entry.commands.output import printable
from tollkeeper.entry.commands.report import Report, show_report
from tollkeeper.reports.bills.service import (
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
from tollkeeper.reports.bills.store import ComparedFigure, Tolerance

T = TypeVar("T")
# In the table, by day and model. The JSON has all.
_SHOWN_MAX = 200


def _option_parser(read: Callable[[str], T]) -> Callable[[str], T]:
    """For an option: invalid text is a usage error."""

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
        parser=_option_parser(_pairs),
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
        parser=_option_parser(tolerance_of),
        show_default="none",
    ),
]
DayOption = Annotated[
    int | None,
    typer.Option(
        metavar="DAY",
        help="The first (--since) or last (--until) day to compare, YYYY-MM-DD.",
        parser=_option_parser(day_number),
        show_default="the first or last day in the file",
    ),
]
ReportedOption = Annotated[
    bool,
    typer.Option(
        "--reported",
        help="Compare the bill with the costs that the backend reported, not with the charges in the ledger.",
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
        names.update(_option_parser(_pairs)(entry))
    column_names = bill_columns(columns)
    with file.open(encoding="utf-8", newline="") as lines:
        comparison = run_with_services(
            invocation,
            lambda services: services.bill_reconciliation.ledger_reconcile(
                backend,
                read_bill(lines, column_names),
                catalog=services.catalog.catalog,
                names=names,
                tolerance=tolerance or Tolerance(),
                days=(since, until),
                reported=reported,
            ),
        )
    differences = comparison.differences
    show_report(
        Report(_content(backend, comparison), _picture(comparison)), as_json=invocation.as_json
    )
    if differences:
        raise StateConflict(f"The bill and the ledger differ in {len(differences)} places.")


def _content(backend: str, comparison: BillComparison) -> dict[str, Any]:
    return {
        "ok": not comparison.differences,
        "backend": backend,
        "since": shown_day(comparison.first_day),
        "until": shown_day(comparison.last_day),
        "compared": len(comparison.days),
        "differences": [_entry(entry) for entry in comparison.differences],
        "totals": _figures(comparison.totals),
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
            "ledger": None if pair.ledger is None else plain_number(pair.ledger),
            "difference": plain_number(pair.difference),
            "differs": pair.differs,
        }
        for pair in pairs
    }


def _picture(comparison: BillComparison) -> RenderableType:
    table = Table(
        *("day", "model", "result", "figure", "bill", "ledger", "difference"),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for entry in comparison.differences[:_SHOWN_MAX]:
        for pair in entry.figures:
            if pair.differs:
                table.add_row(*_cells(shown_day(entry.day), entry.model, entry.kind, pair))
    for pair in comparison.totals:
        table.add_row(*_cells("total", "", "differs" if pair.differs else "same", pair))
    days = f"{shown_day(comparison.first_day)} to {shown_day(comparison.last_day)}"
    lines = [f"{len(comparison.days)} pairs of day and model compared, {days}."]
    if len(comparison.differences) > _SHOWN_MAX:
        lines.append(
            f"{len(comparison.differences) - _SHOWN_MAX} more differ; --json has all of them."
        )
    unsettled = sum(entry.unsettled_requests for entry in comparison.days)
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
        "-" if pair.ledger is None else plain_number(pair.ledger),
        plain_number(pair.difference),
    )
