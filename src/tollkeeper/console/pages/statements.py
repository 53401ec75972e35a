"""Shows an organization's monthly statement as a printable page and as a CSV file."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.context import services_of
from tollkeeper.console.forms import optional, organization_id
from tollkeeper.console.rendering import csv_file, render
from tollkeeper.core.months import month_of_day, month_of_text
from tollkeeper.core.reports import DAY_S
from tollkeeper.reports.statements.rule import Statement, statement_rows


async def show(request: Request) -> Response:
    statement = await _statement(request)
    services = services_of(request)
    organization = await services.organizations.organization_show(statement.organization_id)
    return render(
        request,
        "statement.html",
        nav="organizations",
        title=f"Statement {statement.month}",
        organization=organization,
        statement=statement,
        this_month=month_of_day(services.clock() // DAY_S),
    )


async def download(request: Request) -> Response:
    statement = await _statement(request)
    return csv_file(f"statement-{statement.month}.csv", statement_rows(statement))


async def _statement(request: Request) -> Statement:
    identity = organization_id(request.path_params["organization"])
    text = optional(request.query_params, "month")
    month = None if text is None else month_of_text(text)
    return await services_of(request).statements.statement_show(identity, month)
