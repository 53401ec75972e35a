"""Implements `tollkeeper statement`, which shows an organization's statement for one month."""

from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tollkeeper.cli.arguments import OrganizationArgument
from tollkeeper.cli.command import command_app
from tollkeeper.cli.output import printable
from tollkeeper.cli.report import Report, report_command
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.months import month_of_text
from tollkeeper.domain.statements import Charge, Statement, statement_rows
from tollkeeper.services.csv_text import csv_lines
from tollkeeper.services.use_cases import Services

app = command_app()


@report_command(app, "statement", example="tollkeeper statement Acme --month 2026-10 --csv")
async def statement(
    services: Services,
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
    found = await services.statements.statement_show(
        await services.names.organization_named(organization),
        None if month is None else month_of_text(month),
    )
    return Report(_view(found), _picture(found), text=_csv(found) if as_csv else "")


def _view(found: Statement) -> dict[str, Any]:
    return {
        "organization_id": found.organization_id,
        "month": str(found.month),
        "final": found.final,
        "opening_balance": usd_from_picousd(found.opening_picousd),
        "grants": [
            {
                "kind": grant.kind,
                "count": grant.count,
                "amount": usd_from_picousd(grant.amount_picousd),
            }
            for grant in found.grants
        ],
        "charges": [_charge_view(charge) for charge in found.charges],
        "adjustments": [
            _charge_view(charge) | {"day": charge.adjusts_day} for charge in found.adjustments
        ],
        "closing_balance": usd_from_picousd(found.closing_picousd),
        "unsettled": {
            "calls": found.unsettled_calls,
            "held": usd_from_picousd(found.unsettled_picousd),
        },
    }


def _charge_view(charge: Charge) -> dict[str, Any]:
    return {
        "project_id": charge.project_id,
        "project_name": charge.project_name,
        "model": charge.model,
        "amount": usd_from_picousd(charge.amount_picousd),
    }


def _csv(found: Statement) -> str:
    return csv_lines(statement_rows(found))


def _picture(found: Statement) -> Table:
    state = "final" if found.final else "may change, because the month is not closed"
    table = Table(
        *("entry", "project", "model", "detail"),
        box=SIMPLE_HEAD,
        pad_edge=False,
        title=f"Statement {found.month} ({state})",
        title_justify="left",
    )
    table.add_column("USD", justify="right")
    _, *rows = statement_rows(found)
    for entry, _, *columns in rows:
        table.add_row(*(Text(printable(text)) for text in (entry, *columns)))
    return table
