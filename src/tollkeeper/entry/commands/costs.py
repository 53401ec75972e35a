"""`tollkeeper costs`: an organization's daily costs, as a table and a chart."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.core.conventions import COST_PAGE_DEFAULT, COST_PAGE_MAX
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.reports import DAY_S, CostDimension, CostPage, CostQuery, days_of
from tollkeeper.core.runtime.csv_text import csv_lines
from tollkeeper.entry.commands.amounts import unix_seconds
from tollkeeper.entry.commands.arguments import OrganizationArgument, UntilOption
from tollkeeper.entry.commands.command import command_app
from tollkeeper.entry.commands.output import printable
from tollkeeper.entry.commands.progress import working
from tollkeeper.entry.commands.report import Report, report_command
from tollkeeper.faces.organization.costs import cost_page_view
from tollkeeper.reports.costs.columns import GROUPING_OF, cost_table, day_text
from tollkeeper.reports.costs.service import WHOLE_REPORT_DAYS_MAX
from tollkeeper.reports.rollups import JudgeUsage

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = command_app()

# In characters.
_BAR_WIDTH = 50


@report_command(
    app, "costs", example="tollkeeper costs Acme --since 2026-01-01 --group-by line_item"
)
async def costs(
    services: "Services",
    organization: OrganizationArgument,
    since: Annotated[
        int | None,
        typer.Option(
            metavar="WHEN",
            help="Begin at this time: YYYY-MM-DD (midnight UTC) or Unix seconds.",
            parser=unix_seconds,
            show_default="six days before the end",
        ),
    ] = None,
    until: UntilOption = None,
    group_by: Annotated[
        list[CostDimension] | None,
        typer.Option(
            help="Split the costs of each day by this dimension. May be repeated.",
            show_default=False,
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
) -> Report:
    """Show an organization's costs for each UTC day.

    The amounts are those of the API's cost report. A chart shows the total of each day. With --group-by,
    a table before the chart splits the total of each day. A table after the chart shows the usage of
    the judge, the model that answers the questions of policies."""
    # Exclusive, so 1 is added to include the current second.
    end = services.clock() + 1 if until is None else until
    start = end - 1 - (COST_PAGE_DEFAULT - 1) * DAY_S if since is None else since
    if end < start:
        raise InvalidRequest("The end of the time is before its beginning.")
    if end - start > WHOLE_REPORT_DAYS_MAX * DAY_S:
        raise typer.BadParameter(f"A report covers at most {WHOLE_REPORT_DAYS_MAX} days.")
    query = CostQuery(
        start_time=max(0, start),
        end_time=end,
        project_ids=(),
        api_key_ids=(),
        group_by=tuple(dict.fromkeys(group_by or ())),
        limit=COST_PAGE_MAX,
    )
    organization_id = await services.names.organization_named(organization)
    # Raises if it doesn't exist.
    await services.organizations.organization_show(organization_id)
    with working("Adding up"):
        page = await services.costs.whole_cost_report(organization_id, query)
    judge_usages = await services.judge_costs.judge_usage(organization_id, days_of(start, end))
    names = await services.names.names_of(
        object_id
        for bucket in page.buckets
        for row in bucket.rows
        for object_id in (row.project_id, row.api_key_id)
    )
    rows = cost_table(page.buckets, [GROUPING_OF[dimension] for dimension in query.group_by], names)
    content: dict[str, Any] = msgspec.to_builtins(cost_page_view(page))
    return Report(
        content
        | {
            "unsettled_requests": page.unsettled_requests,
            "judge": [_judge_view(used) for used in judge_usages],
        },
        _picture(page, rows if group_by else [], judge_usages),
        text=csv_lines(rows) if as_csv else "",
    )


def _judge_view(used: JudgeUsage) -> dict[str, Any]:
    return {
        "backend": used.backend,
        "model": used.model,
        "questions": used.questions,
        "unreported_questions": used.unreported_questions,
        "input_tokens": used.input_tokens,
        "cached_tokens": used.cached_tokens,
        "output_tokens": used.output_tokens,
        "cost_usd": usd_from_picousd(used.cost_picousd),
    }


def _judge_table(judge_usages: Sequence[JudgeUsage]) -> Table:
    table = Table(
        *("judge", "model", "questions", "input tokens", "cached", "output tokens", "USD"),
        box=SIMPLE_HEAD,
        pad_edge=False,
        title="Usage of the judge for this organization's policies (paid by the operator)",
        title_justify="left",
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for used in judge_usages:
        counts = (used.questions, used.input_tokens, used.cached_tokens, used.output_tokens)
        table.add_row(
            Text(used.backend),
            Text(used.model),
            *(f"{count:,}" for count in counts),
            usd_from_picousd(used.cost_picousd),
        )
    return table


def _picture(
    page: CostPage,
    rows: Sequence[tuple[str, ...]],
    judge_usages: Sequence[JudgeUsage],
) -> RenderableType:
    parts: list[RenderableType] = []
    if rows:
        parts.append(_table(rows))
    parts.append(_chart(page))
    if judge_usages:
        parts.append(_judge_table(judge_usages))
    if unreported := sum(used.unreported_questions for used in judge_usages):
        parts.append(Text(f"The judge reported no token counts for {unreported} questions."))
    if page.unsettled_requests:
        parts.append(
            Text(
                f"{page.unsettled_requests} calls of these days are unsettled: their cost is not "
                "known yet and is not included. `tollkeeper ledger unsettled` lists these calls.",
                style="yellow",
            )
        )
    return Group(*parts)


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    """Without ids."""
    columns = [column for column in zip(*rows, strict=True) if not column[0].endswith("_id")]
    header, *costs = zip(*columns, strict=True)
    table = Table(*header[:-1], box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("USD", justify="right")
    for row in costs:
        table.add_row(*(Text(printable(text)) for text in row))
    return table


def _chart(page: CostPage) -> Table:
    """A bar per day."""
    totals = [sum(row.amount_picousd for row in bucket.rows) for bucket in page.buckets]
    highest = max(totals, default=0)
    table = Table("day", "", box=SIMPLE_HEAD, pad_edge=False, show_footer=True)
    table.columns[0].footer = "total"
    table.columns[1].style = "cyan"
    table.add_column("USD", justify="right", footer=usd_from_picousd(sum(totals)))
    for bucket, total in zip(page.buckets, totals, strict=True):
        # Rounded up, so every cost has a visible bar.
        width = -(-total * _BAR_WIDTH // highest) if highest else 0
        table.add_row(day_text(bucket.start_time), "█" * width, usd_from_picousd(total))
    return table
