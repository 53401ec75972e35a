"""`tollkeeper ledger reconcile`: a provider's bill beside the books."""

from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.cli.command import Invocation, run_with_services
from tollkeeper.cli.output import printable
from tollkeeper.cli.report import Report, show_report
from tollkeeper.domain.errors import InvalidRequest, StateConflict
from tollkeeper.services.ledger.bill import BillColumns, BillComparison, BillDay, Figure, read_bill
from tollkeeper.storage.backend_usage import ComparedFigure, Tolerance

_EPOCH = date(1970, 1, 1)
_DAY, _MODEL = "day", "model"
# Rows that people are shown; programs get all of them.
_SHOWN_MAX = 200


def _tolerance(text: str) -> Tolerance:
    number = text.removesuffix("%")
    whole, _, fraction = number.partition(".")
    if not (whole.isascii() and whole.isdigit() and (fraction or "0").isdigit()) or len(text) > 30:
        raise typer.BadParameter(f"{text!r} is neither a percentage (0.5%) nor USD (0.01).")
    if text.endswith("%"):
        return Tolerance(part=Decimal(number).scaleb(-2))
    return Tolerance(usd=Decimal(number))


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in text.split(","):
        name, separator, value = (piece.strip() for piece in entry.partition("="))
        if not (name and separator and value):
            raise typer.BadParameter(f"{entry!r} is not name=value.")
        found[name] = value
    return found


def _day_number(text: str) -> int:
    try:
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a day such as 2026-09-01.") from None


BackendArgument = Annotated[
    str, typer.Argument(metavar="BACKEND", help="As the settings call it.", show_default=False)
]
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The provider's CSV.", show_default=False)
]
ColumnsOption = Annotated[
    dict[str, str],
    typer.Option(
        metavar="NAME=COLUMN,…",
        help="How the file calls day, model and what is to be compared: requests, "
        "input_tokens, uncached_input_tokens, cached_input_tokens, cache_write_tokens, "
        "output_tokens, cost (USD).",
        parser=_pairs,
        show_default=False,
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OURS=THEIRS",
        help="How the provider calls one of our models; may be repeated.",
        show_default="`upstream_model`",
    ),
]
ToleranceOption = Annotated[
    Tolerance | None,
    typer.Option(
        metavar="0.5%|USD",
        help="Differences up to this are none: a percentage, or USD for costs.",
        parser=_tolerance,
        show_default="none",
    ),
]
DayOption = Annotated[
    int | None,
    typer.Option(
        metavar="DAY",
        help="The first or the last day to compare, YYYY-MM-DD.",
        parser=_day_number,
        show_default="by the file",
    ),
]
ReportedOption = Annotated[
    bool,
    typer.Option(
        "--reported", help="Compare with the cost that the backend reported, not our charge."
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
    """Compare a provider's bill with the books, by UTC day and model. Fails if something differs."""
    names: dict[str, str] = {}
    for entry in model or []:
        names.update(_pairs(entry))
    named = _columns(columns)
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
        raise StateConflict(f"The bill and the books differ in {len(differences)} places.")


def _columns(named: dict[str, str]) -> BillColumns:
    unknown = sorted(set(named) - {_DAY, _MODEL, *Figure})
    if unknown:
        raise InvalidRequest(f"There is nothing to compare called {unknown[0]}.", param="columns")
    figures = {Figure(name): column for name, column in named.items() if name in set(Figure)}
    if _DAY not in named or _MODEL not in named or not figures:
        raise InvalidRequest(
            "Name the columns of the file: day, model and at least one to compare, as in "
            "--columns day=date,model=model,cost=amount",
            param="columns",
        )
    return BillColumns(named[_DAY], named[_MODEL], figures)


def _content(backend: str, found: BillComparison) -> dict[str, Any]:
    return {
        "ok": not found.differences,
        "backend": backend,
        "since": _shown_day(found.first_day),
        "until": _shown_day(found.last_day),
        "compared": len(found.days),
        "differences": [_entry(entry) for entry in found.differences],
        "totals": _figures(found.totals),
    }


def _entry(entry: BillDay) -> dict[str, Any]:
    return {
        "day": _shown_day(entry.day),
        "model": entry.model,
        "kind": entry.kind,
        "figures": _figures(entry.figures),
        "unsettled_requests": entry.unsettled_requests,
    }


def _figures(pairs: tuple[ComparedFigure, ...]) -> dict[str, Any]:
    return {
        pair.figure: {
            "bill": None if pair.bill is None else _number(pair.bill),
            "books": None if pair.books is None else _number(pair.books),
            "difference": _number(pair.difference),
            "differs": pair.differs,
        }
        for pair in pairs
    }


def _picture(found: BillComparison) -> RenderableType:
    table = Table(
        *("day", "model", "", "figure", "bill", "books", "difference"),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for entry in found.differences[:_SHOWN_MAX]:
        for pair in entry.figures:
            if pair.differs:
                table.add_row(*_cells(_shown_day(entry.day), entry.model, entry.kind, pair))
    for pair in found.totals:
        table.add_row(*_cells("total", "", "differs" if pair.differs else "same", pair))
    days = f"{_shown_day(found.first_day)} to {_shown_day(found.last_day)}"
    lines = [f"{len(found.days)} days and models compared, {days}."]
    if len(found.differences) > _SHOWN_MAX:
        lines.append(f"{len(found.differences) - _SHOWN_MAX} more differ; --json has all of them.")
    unsettled = sum(entry.unsettled_requests for entry in found.days)
    if unsettled:
        lines.append(f"{unsettled} requests of the books are unsettled: their cost is left out.")
    return Group(table, Text("\n".join(lines)))


def _cells(day: str, model: str, kind: str, pair: ComparedFigure) -> tuple[str | Text, ...]:
    return (
        day,
        Text(printable(model)),
        kind,
        pair.figure,
        "-" if pair.bill is None else _number(pair.bill),
        "-" if pair.books is None else _number(pair.books),
        _number(pair.difference),
    )


def _shown_day(day: int) -> str:
    return str(_EPOCH + timedelta(days=day))


def _number(value: Decimal) -> str:
    """Exact, without exponent and without zeros at the end."""
    text = format(value, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"
