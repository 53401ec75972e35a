"""`tollkeeper statement`: an organization's statement for a month."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.months import month_of_text
from tollkeeper.core.runtime.csv_text import csv_lines
from tollkeeper.entry.commands.arguments import OrganizationArgument
from tollkeeper.entry.commands.command import command_app
from tollkeeper.entry.commands.output import printable
from tollkeeper.entry.commands.report import Report, report_command
from tollkeeper.reports.statements.rule import Charge, Statement, statement_rows

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = command_app()


@report_command(app, "statement", example="tollkeeper statement Acme --month 2026-10 --csv")
async def statement(
    services: "Services",
    organization: OrganizationArgument,
    month: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM",
            help="Show the statement of this month in UTC.",
            show_default="the current month",
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
) -> Report:
    """Show an organization's statement for a month.

    The statement has the opening balance, grants by kind, charges by project and model, adjustments,
    and the closing balance."""
    month_statement = await services.statements.statement_show(
        await services.names.organization_named(organization),
        None if month is None else month_of_text(month),
    )
    return Report(
        _view(month_statement),
        _picture(month_statement),
        text=_csv(month_statement) if as_csv else "",
    )


def _view(statement: Statement) -> dict[str, Any]:
    return {
        "organization_id": statement.organization_id,
        "month": str(statement.month),
        "final": statement.final,
        "opening_balance": usd_from_picousd(statement.opening_picousd),
        "grants": [
            {
                "kind": grant.kind,
                "count": grant.count,
                "amount": usd_from_picousd(grant.amount_picousd),
            }
            for grant in statement.grants
        ],
        "charges": [_charge_view(charge) for charge in statement.charges],
        "adjustments": [
            _charge_view(charge) | {"day": charge.adjusts_day} for charge in statement.adjustments
        ],
        "closing_balance": usd_from_picousd(statement.closing_picousd),
        "unsettled": {
            "calls": statement.unsettled_calls,
            "held": usd_from_picousd(statement.unsettled_picousd),
        },
    }


def _charge_view(charge: Charge) -> dict[str, Any]:
    return {
        "project_id": charge.project_id,
        "project_name": charge.project_name,
        "model": charge.model,
        "amount": usd_from_picousd(charge.amount_picousd),
    }


def _csv(statement: Statement) -> str:
    return csv_lines(statement_rows(statement))


def _picture(statement: Statement) -> Table:
    state = "final" if statement.final else "may change, because the month is not closed"
    table = Table(
        *("entry", "project", "model", "detail"),
        box=SIMPLE_HEAD,
        pad_edge=False,
        title=f"Statement {statement.month} ({state})",
        title_justify="left",
    )
    table.add_column("USD", justify="right")
    _, *rows = statement_rows(statement)
    for entry, _, *columns in rows:
        table.add_row(*(Text(printable(text)) for text in (entry, *columns)))
    return table
