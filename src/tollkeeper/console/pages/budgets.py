"""Shows every cap of an organization, the amount used, and the pace of spending."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.charts import burn_down, iso_minute
from tollkeeper.console.chosen import chosen_organization
from tollkeeper.console.context import console_of
from tollkeeper.console.months_compared import month_start
from tollkeeper.console.pages.costs import cost_report
from tollkeeper.console.rendering import day, render
from tollkeeper.core.access import KeyId, ProjectId
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.reports import DAY_S, CostDimension
from tollkeeper.money.caps.rule import CapPeriod, CapUse
from tollkeeper.reports.statements.rule import adjusted_day
from tollkeeper.reports.traffic.rule import TimeRange
from tollkeeper.setup.services import Services
from tollkeeper.tenants.organization import Organization

# The number of charts is limited, because each chart needs a cost report of its own.
_CHARTS_MAX = 12
# The chart of a total cap begins at most this many days ago.
_TOTAL_DAYS_MAX = 366
_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Budget:
    use: CapUse
    name: str
    # None for all caps after the first `_CHARTS_MAX`.
    chart: dict[str, object] | None = None
    # Each hour (of a daily cap) or day of the period so far, with the remaining amount (in picousd)
    # at its end. Empty without a chart.
    left: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Spending:
    """Contains the costs that count for a cap, by hour or day. Amounts are in picousd."""

    # The starts of all hours or days of the period, and the end of the period.
    times: Sequence[str]
    # The costs of the hours or days so far.
    costs: Sequence[int]
    # The costs before the first time.
    before: int = 0


@dataclass(frozen=True, slots=True)
class _CappedCosts:
    """Reads the costs that count for one cap."""

    services: Services
    organization: Organization
    use: CapUse
    # Empty ids mean all projects and all keys.
    project_ids: tuple[ProjectId, ...]
    api_key_ids: tuple[KeyId, ...]

    async def of_day(self, end: int) -> _Spending:
        """Returns the costs by hour on the day that ends at this time."""
        hours = range((end - DAY_S) // _HOUR_S, end // _HOUR_S)
        by_hour = await self.services.ledger_overview.costs_by_hour(
            self.organization.id, hours, self.project_ids, self.api_key_ids
        )
        # The clocks of console and database may differ.
        last = max([self.services.clock() // _HOUR_S, *by_hour])
        return _Spending(
            times=[iso_minute(hour * _HOUR_S) for hour in (*hours, hours.stop)],
            costs=[by_hour.get(hour, 0) for hour in hours if hour <= last],
        )

    async def of_period(self, start: int, end: int) -> _Spending:
        """Returns the costs by day in the week or month between these times. An adjustment counts on
        the day of its call, as it does for the cap."""
        time = TimeRange(start, min(max(self.services.clock(), start) + 1, end))
        page = await cost_report(
            *(self.services, self.organization.id, time, self.project_ids, self.api_key_ids),
            group_by=(CostDimension.LINE_ITEM,),
        )
        by_day = {day(bucket.start_time): 0 for bucket in page.buckets}
        for row in (row for bucket in page.buckets for row in bucket.rows):
            counted = adjusted_day(row.line_item or "") or day(row.day * DAY_S)
            # Adjustments of earlier periods do not count.
            if counted in by_day:
                by_day[counted] += row.amount_picousd
        return _Spending(
            times=[day(time) for time in range(start, end + 1, DAY_S)],
            costs=list(by_day.values()),
        )

    async def of_all_days(self) -> _Spending:
        """Returns the costs by day since the first cost. Without costs, returns all days since the
        organization was created."""
        now, created = self.services.clock(), self.organization.created_at
        start = min(now, max(created, now - (_TOTAL_DAYS_MAX - 1) * DAY_S))
        page = await cost_report(
            *(self.services, self.organization.id, TimeRange(start, now + 1)),
            *(self.project_ids, self.api_key_ids),
        )
        costs = [sum(row.amount_picousd for row in bucket.rows) for bucket in page.buckets]
        before = 0 if start <= created else max(0, self.use.spent_picousd - sum(costs))
        # The days before the first cost are left out.
        first = 0 if before else next((place for place, cost in enumerate(costs) if cost), 0)
        days = [bucket.start_time for bucket in page.buckets[first:]]
        return _Spending([day(time) for time in (*days, days[-1] + DAY_S)], costs[first:], before)


async def show(request: Request) -> Response:
    services = console_of(request).services
    chosen = await chosen_organization(request)
    budgets: list[Budget] = []
    if chosen.organization is not None:
        uses = await services.caps.cap_show(chosen.organization.id)
        names = await services.names.names_of(
            owner for use in uses for owner in (use.project_id, use.key_id)
        )
        for number, use in enumerate(uses):
            owner = use.key_id or use.project_id
            name = chosen.organization.name if owner is None else names.get(str(owner), str(owner))
            budgets.append(
                await _with_chart(services, chosen.organization, use, name)
                if number < _CHARTS_MAX
                else Budget(use, name)
            )
    return render(
        request,
        "budgets.html",
        nav="budgets",
        title="Budgets",
        chosen=chosen,
        budgets=budgets,
        without_chart=max(0, len(budgets) - _CHARTS_MAX),
    )


async def _with_chart(
    services: Services, organization: Organization, use: CapUse, name: str
) -> Budget:
    spending = await _spending(services, organization, use)
    cap, steps = use.cap.amount_picousd, len(spending.times) - 1
    left = list(accumulate(spending.costs, sub, initial=cap - spending.before))
    pace = [cap * (steps - passed) // steps for passed in range(steps + 1)]
    chart = burn_down(
        spending.times,
        [usd_from_picousd(one) for one in left],
        # A total cap has no end, so there is no even pace.
        [] if use.resets_at is None else [usd_from_picousd(one) for one in pace],
    )
    return Budget(use, name, chart, tuple(zip(spending.times, left[1:], strict=False)))


async def _spending(services: Services, organization: Organization, use: CapUse) -> _Spending:
    project_ids = () if use.project_id is None or use.first_key_id else (use.project_id,)
    api_key_ids = (
        ()
        if use.first_key_id is None
        else await services.caps.cap_keys(organization.id, use.first_key_id)
    )
    costs = _CappedCosts(services, organization, use, project_ids, api_key_ids)
    if use.resets_at is None:
        return await costs.of_all_days()
    if use.cap.period is CapPeriod.DAY:
        return await costs.of_day(use.resets_at)
    is_month = use.cap.period is CapPeriod.MONTH
    start = month_start(use.resets_at - 1) if is_month else use.resets_at - 7 * DAY_S
    return await costs.of_period(start, use.resets_at)
