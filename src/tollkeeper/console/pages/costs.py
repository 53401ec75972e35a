"""Shows daily costs as a chart, a table and a CSV file. An organization's costs are those of the
API's cost report."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.own_services import AnyServices, OwnServices
from tollkeeper.console.charts import hourly, stacked_days
from tollkeeper.console.chosen import ChosenOrganization, chosen_organization
from tollkeeper.console.context import console_of, services_of
from tollkeeper.console.forms import RANGES_S, key_id, optional, project_id, time_range
from tollkeeper.console.months_compared import (
    MonthsCompared,
    compare_months,
    month_start,
    two_months,
)
from tollkeeper.console.rendering import csv_file, day, render
from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.conventions import COST_PAGE_MAX
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.reports import DAY_S, CostDimension, CostPage, CostQuery, days_of
from tollkeeper.reports.costs.columns import COST_GROUPINGS, CostGrouping, cost_table
from tollkeeper.reports.traffic.rule import TimeRange

# The maximum number of keys whose names are shown instead of their ids.
_NAMES_MAX = 1000
_HOURS = 48
# The maximum number of groups in a chart. The chart combines all smaller groups as `_OTHERS`.
_SERIES_MAX = 9
_OTHERS = "others"


@dataclass(frozen=True, slots=True)
class CostTable:
    """Contains exact amounts (in picousd) by group and day. The most expensive group comes first.
    `unsettled` is the number of unsettled calls, whose costs are not included."""

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


async def show_all(request: Request) -> Response:
    """Shows the costs of every organization in this month, in the previous month and in the last 30
    days."""
    services = console_of(request).services
    now = services.clock()
    names = {found.id: found.name for found in await services.organizations.organization_list()}
    by_organization = await services.ledger_overview.costs_by_organization(two_months(now))
    days = days_of(now + 1 - RANGES_S["30d"], now + 1)
    dearest_first = sorted(
        (
            (str(identity), tuple(found.get(day_, 0) for day_ in range(days.first, days.end)))
            for identity, found in by_organization.items()
        ),
        key=lambda item: (-sum(item[1]), item[0]),
    )
    table = CostTable(
        days=tuple(day(number * DAY_S) for number in range(days.first, days.end)),
        by_group=dict(dearest_first),
        unsettled=0,
    )
    shown = {str(identity): name for identity, name in names.items()}
    months = {
        str(identity): compare_months(found, now) for identity, found in by_organization.items()
    }
    return render(
        request,
        "costs_all.html",
        nav="costs",
        title="Costs of all organizations",
        table=table,
        names=shown,
        chart=_chart(table, shown),
        months=months,
    )


async def cost_report(
    services: AnyServices,
    organization: OrganizationId,
    time: TimeRange,
    project_ids: tuple[ProjectId, ...] = (),
    api_key_ids: tuple[KeyId, ...] = (),
    *,
    group_by: tuple[CostDimension, ...] = (),
) -> CostPage:
    """Returns the costs of each day. Empty ids mean all projects and all keys."""
    query = CostQuery(time.start, time.end, project_ids, api_key_ids, group_by, COST_PAGE_MAX)
    return await services.costs.whole_cost_report(organization, query)


async def month_spend(
    services: AnyServices, organization: OrganizationId, dimension: CostDimension
) -> dict[str, int]:
    """Returns the costs of each project or key in this month, by id."""
    now = services.clock()
    time = TimeRange(month_start(now), now + 1)
    page = await cost_report(services, organization, time, group_by=(dimension,))
    found: dict[str, int] = defaultdict(int)
    for row in (row for bucket in page.buckets for row in bucket.rows):
        found[str(getattr(row, dimension))] += row.amount_picousd
    return found


async def show(request: Request) -> Response:
    services = services_of(request)
    chosen = await chosen_organization(request)
    name, grouping = _grouping(request)
    values: dict[str, Any] = {}
    if chosen.organization is not None:
        identity = chosen.organization.id
        time = _time(request, services)
        page = await _report(request, services, identity, grouping, time)
        table = _table(page, grouping)
        names = await _names(services, identity, name)
        values = {
            "table": table,
            "names": names,
            "time": time,
            "chart": _chart(table, names),
            "savings": await services.traffic.cache_savings(identity, time),
            "hours": await _hours_chart(services, identity),
            "months": await _months(services, identity),
            "projects": await services.projects.project_list(identity),
            # The usage of the judge (the model that answers policy questions). Users of an
            # organization do not see it, because the operator pays for the judge.
            "judged": []
            if isinstance(services, OwnServices)
            else await services.judge_costs.judge_usage(identity, days_of(time.start, time.end)),
        }
    return render(
        request,
        "costs.html",
        nav="costs",
        title="Costs",
        chosen=chosen,
        by=name,
        groupings=COST_GROUPINGS,
        range=request.query_params.get("range", "30d"),
        **values,
    )


async def _hours_chart(services: AnyServices, identity: OrganizationId) -> dict[str, object] | None:
    """Returns a chart of hourly costs in the last two days; None if there were no costs."""
    end = services.clock() // 3600 + 1
    hours = range(end - _HOURS, end)
    cost_by_hour = await services.ledger_overview.costs_by_hour(identity, hours)
    amounts = [usd_from_picousd(cost_by_hour.get(hour, 0)) for hour in hours]
    return hourly(hours, amounts) if cost_by_hour else None


async def _months(services: AnyServices, identity: OrganizationId) -> MonthsCompared:
    now = services.clock()
    days = two_months(now)
    page = await cost_report(services, identity, TimeRange(days.first * DAY_S, now + 1))
    by_day = {
        bucket.start_time // DAY_S: sum(row.amount_picousd for row in bucket.rows)
        for bucket in page.buckets
    }
    return compare_months(by_day, now)


async def download(request: Request) -> Response:
    """Sends the amounts on the page as a CSV file, with one line for each day and group."""
    services = services_of(request)
    chosen: ChosenOrganization = await chosen_organization(request)
    if chosen.organization is None:
        raise InvalidRequest("There is no organization yet.", param="organization")
    name, grouping = _grouping(request)
    time = _time(request, services)
    page = await _report(request, services, chosen.organization.id, grouping, time)
    names = await _names(services, chosen.organization.id, name)
    return csv_file("costs.csv", cost_table(page.buckets, [grouping], names))


async def _report(
    request: Request,
    services: AnyServices,
    organization: OrganizationId,
    grouping: CostGrouping,
    time: TimeRange,
) -> CostPage:
    return await cost_report(
        *(services, organization, time, _project_filter(request), _key_filter(request)),
        group_by=(grouping.dimension,),
    )


def _table(page: CostPage, grouping: CostGrouping) -> CostTable:
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
    series = {
        names.get(group, group): [usd_from_picousd(amount) for amount in amounts]
        for group, amounts in groups[:_SERIES_MAX]
    }
    if len(groups) > _SERIES_MAX:
        smaller_groups = zip(*(amounts for _, amounts in groups[_SERIES_MAX:]), strict=True)
        series[_OTHERS] = [usd_from_picousd(sum(column)) for column in smaller_groups]
    return stacked_days(table.days, series)


async def _names(services: AnyServices, organization: OrganizationId, by: str) -> dict[str, str]:
    """Returns the names of projects or keys by id; empty for other groupings. If several projects
    or keys have the same name, the beginning of the id follows the name."""
    if by == "project":
        named = [
            (str(project.id), project.name)
            for project in await services.projects.project_list(organization)
        ]
    elif by == "key":
        keys = await services.project_keys.project_key_list_of_organization(
            organization, limit=_NAMES_MAX
        )
        named = [(str(key.id), key.name) for key in keys]
    else:
        return {}
    names = [name for _, name in named]
    return {
        identity: name if names.count(name) == 1 else f"{name} ({identity[:8]})"
        for identity, name in named
    }


def _grouping(request: Request) -> tuple[str, CostGrouping]:
    name = request.query_params.get("by", "model")
    if name not in COST_GROUPINGS:
        raise InvalidRequest(f"Costs are grouped by {', '.join(COST_GROUPINGS)}.", param="by")
    return name, COST_GROUPINGS[name]


def _time(request: Request, services: AnyServices) -> TimeRange:
    return time_range(request.query_params, services.clock(), default="30d")


def _project_filter(request: Request) -> tuple[ProjectId, ...]:
    text = optional(request.query_params, "project")
    return () if text is None else (project_id(text),)


def _key_filter(request: Request) -> tuple[KeyId, ...]:
    text = optional(request.query_params, "key")
    return () if text is None else (key_id(text),)
