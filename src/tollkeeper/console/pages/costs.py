"""Costs by day: the cost report of the API, as a chart, a table and a file."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.charts import stacked_days
from tollkeeper.console.chosen import ChosenOrganization, chosen_organization
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import key_id, optional, project_id, time_range
from tollkeeper.console.rendering import csv_file, day, render
from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.conventions import COST_PAGE_MAX
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.reports import CostDimension, CostQuery, CostRow, days_of
from tollkeeper.domain.traffic import TimeRange
from tollkeeper.services.use_cases import Services

_NAMES_MAX = 1000
# More groups than a chart can tell apart: the smallest ones are shown together.
_SERIES_MAX = 9
_OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Grouping:
    title: str
    dimension: CostDimension
    group: Callable[[CostRow], str]


GROUPINGS = {
    "model": Grouping(
        "Model", CostDimension.LINE_ITEM, lambda row: (row.line_item or "").rpartition(", ")[0]
    ),
    "project": Grouping("Project", CostDimension.PROJECT_ID, lambda row: str(row.project_id)),
    "key": Grouping("Key", CostDimension.API_KEY_ID, lambda row: str(row.api_key_id)),
    "line_item": Grouping("Line item", CostDimension.LINE_ITEM, lambda row: row.line_item or ""),
}


@dataclass(frozen=True, slots=True)
class CostTable:
    """Exact amounts by group and day, the dearest group first."""

    days: tuple[str, ...]
    by_group: dict[str, tuple[int, ...]]
    unsettled: int

    @property
    def total(self) -> int:
        return sum(sum(amounts) for amounts in self.by_group.values())

    @property
    def by_day(self) -> list[int]:
        columns = zip(*self.by_group.values(), strict=True)
        return [sum(column) for column in columns] or [0] * len(self.days)


async def show(request: Request) -> Response:
    services = console_of(request).services
    chosen = await chosen_organization(request)
    name, grouping = _grouping(request)
    values: dict[str, Any] = {}
    if chosen.organization is not None:
        identity = chosen.organization.id
        time = _time(request, services)
        table = await cost_table(request, services, identity, grouping, time)
        names = await _names(services, identity, name)
        values = {
            "table": table,
            "names": names,
            "time": time,
            "chart": _chart(table, names),
            "savings": await services.traffic.cache_savings(identity, time),
            "projects": await services.projects.project_list(identity),
            "judged": await services.judge_costs.judge_usage(
                identity, days_of(time.start, time.end)
            ),
        }
    return render(
        request,
        "costs.html",
        nav="costs",
        title="Costs",
        chosen=chosen,
        by=name,
        groupings=GROUPINGS,
        range=request.query_params.get("range", "30d"),
        **values,
    )


async def download(request: Request) -> Response:
    """The same numbers as a CSV file: one line for each day and group."""
    services = console_of(request).services
    chosen: ChosenOrganization = await chosen_organization(request)
    if chosen.organization is None:
        raise InvalidRequest("There is no organization yet.", param="organization")
    name, grouping = _grouping(request)
    time = _time(request, services)
    table = await cost_table(request, services, chosen.organization.id, grouping, time)
    names = await _names(services, chosen.organization.id, name)
    rows = [
        (day_, group, names.get(group, group), usd_from_picousd(amount))
        for group, amounts in table.by_group.items()
        for day_, amount in zip(table.days, amounts, strict=True)
        if amount
    ]
    return csv_file("costs.csv", [("day", name, "name", "amount_usd"), *rows])


async def cost_table(
    request: Request,
    services: Services,
    organization: OrganizationId,
    grouping: Grouping,
    time: TimeRange,
) -> CostTable:
    query = CostQuery(
        start_time=time.start,
        end_time=time.end,
        project_ids=_project_filter(request),
        api_key_ids=_key_filter(request),
        group_by=(grouping.dimension,),
        limit=COST_PAGE_MAX,
    )
    page = await services.costs.whole_cost_report(organization, query)
    amounts: dict[str, list[int]] = defaultdict(lambda: [0] * len(page.buckets))
    for number, bucket in enumerate(page.buckets):
        for row in bucket.rows:
            amounts[grouping.group(row)][number] += row.amount_picousd
    dearest_first = sorted(amounts.items(), key=lambda item: (-sum(item[1]), item[0]))
    return CostTable(
        days=tuple(day(bucket.start_time) for bucket in page.buckets),
        by_group={group: tuple(found) for group, found in dearest_first},
        unsettled=page.unsettled_requests,
    )


def _chart(table: CostTable, names: dict[str, str]) -> dict[str, object]:
    groups = list(table.by_group.items())
    shown = {
        names.get(group, group): [usd_from_picousd(amount) for amount in amounts]
        for group, amounts in groups[:_SERIES_MAX]
    }
    if len(groups) > _SERIES_MAX:
        rest = zip(*(amounts for _, amounts in groups[_SERIES_MAX:]), strict=True)
        shown[_OTHERS] = [usd_from_picousd(sum(column)) for column in rest]
    return stacked_days(table.days, shown)


async def _names(services: Services, organization: OrganizationId, by: str) -> dict[str, str]:
    """How people call projects and keys; a name that two of them have is followed by its id."""
    if by == "project":
        found = [
            (str(one.id), one.name) for one in await services.projects.project_list(organization)
        ]
    elif by == "key":
        keys = await services.project_keys.project_key_list_of_organization(
            organization, limit=_NAMES_MAX
        )
        found = [(str(key.id), key.name) for key in keys]
    else:
        return {}
    names = [name for _, name in found]
    return {
        identity: name if names.count(name) == 1 else f"{name} ({identity[:8]})"
        for identity, name in found
    }


def _grouping(request: Request) -> tuple[str, Grouping]:
    name = request.query_params.get("by", "model")
    if name not in GROUPINGS:
        raise InvalidRequest(f"Costs are grouped by {', '.join(GROUPINGS)}.", param="by")
    return name, GROUPINGS[name]


def _time(request: Request, services: Services) -> TimeRange:
    return time_range(request.query_params, services.clock(), default="30d")


def _project_filter(request: Request) -> tuple[ProjectId, ...]:
    text = optional(request.query_params, "project")
    return () if text is None else (project_id(text),)


def _key_filter(request: Request) -> tuple[KeyId, ...]:
    text = optional(request.query_params, "key")
    return () if text is None else (key_id(text),)
