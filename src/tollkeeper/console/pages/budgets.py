"""Shows every cap of an organization, the amount used, and the pace of spending."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.charts import burn_down
from tollkeeper.console.chosen import chosen_organization
from tollkeeper.console.context import console_of
from tollkeeper.console.months_compared import month_start
from tollkeeper.console.pages.costs import cost_report
from tollkeeper.console.rendering import day, render
from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.reports import DAY_S
from tollkeeper.domain.traffic import TimeRange
from tollkeeper.domain.views import CapUse
from tollkeeper.services.use_cases import Services

# The number of charts is limited, because each chart needs a cost report of its own.
_CHARTS_MAX = 12


@dataclass(frozen=True, slots=True)
class Budget:
    use: CapUse
    name: str
    # None for daily and total caps, and for all caps after the first `_CHARTS_MAX`.
    chart: dict[str, object] | None
    # Each day of the period so far, with the remaining amount (in picousd) at the end of the day.
    # Empty without a chart.
    left: tuple[tuple[str, int], ...] = ()


async def show(request: Request) -> Response:
    services = console_of(request).services
    chosen = await chosen_organization(request)
    budgets: list[Budget] = []
    if chosen.organization is not None:
        identity = chosen.organization.id
        uses = await services.caps.cap_show(identity)
        names = await services.names.names_of(
            owner for use in uses for owner in (use.project_id, use.key_id)
        )
        for number, use in enumerate(uses):
            owner = use.key_id or use.project_id
            name = chosen.organization.name if owner is None else names.get(str(owner), str(owner))
            budgets.append(
                await _budget(services, identity, use, name, with_chart=number < _CHARTS_MAX)
            )
    return render(
        request, "budgets.html", nav="budgets", title="Budgets", chosen=chosen, budgets=budgets
    )


async def _budget(
    services: Services, identity: OrganizationId, use: CapUse, name: str, *, with_chart: bool
) -> Budget:
    now, end = services.clock(), use.resets_at
    if end is None or use.cap.period not in (CapPeriod.WEEK, CapPeriod.MONTH) or not with_chart:
        return Budget(use, name, None)
    start = month_start(now) if use.cap.period is CapPeriod.MONTH else end - 7 * DAY_S
    page = await cost_report(
        *(services, identity, TimeRange(start, now + 1)),
        () if use.project_id is None or use.key_id else (use.project_id,),
        () if use.key_id is None else (use.key_id,),
    )
    cap, left = use.cap.amount_picousd, [use.cap.amount_picousd]
    for bucket in page.buckets:
        left.append(left[-1] - sum(row.amount_picousd for row in bucket.rows))
    days = (end - start) // DAY_S
    pace = [cap * (days - passed) // days for passed in range(days + 1)]
    labels = [day(start + number * DAY_S) for number in range(days + 1)]
    chart = burn_down(
        labels, [usd_from_picousd(one) for one in left], [usd_from_picousd(one) for one in pace]
    )
    return Budget(use, name, chart, tuple(zip(labels, left[1:], strict=False)))
