"""Tests that the pages about costs and budgets show the ledger's numbers to the last digit."""

import json
import re
from datetime import UTC, datetime

from tests.support.console_site import TOKEN, ConsoleSite
from tests.support.http_client import http_client
from tollkeeper.console.months_compared import MonthsCompared, compare_months, two_months
from tollkeeper.console.pages.costs import GROUPINGS
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.reports import CostRow


def _day(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp()) // 86_400


def test_a_month_is_compared_until_the_same_day() -> None:
    by_day = {
        _day(2026, 2, 1): 1,
        _day(2026, 2, 28): 10,
        _day(2026, 3, 1): 100,
        _day(2026, 3, 31): 1000,
    }
    now = _day(2026, 3, 31) * 86_400 + 5
    assert compare_months(by_day, now) == MonthsCompared(1100, 11, 11)
    assert compare_months(by_day, _day(2026, 3, 2) * 86_400) == MonthsCompared(100, 1, 11)
    days = two_months(_day(2026, 1, 1) * 86_400)
    assert (days.first, days.end) == (_day(2025, 12, 1), _day(2026, 1, 2))


def test_costs_by_model_include_adjustments() -> None:
    rows = [
        CostRow(1, 1, None, None, line_item)
        for line_item in ("a, b, prompt", "a, b, prompt, adjustment of 2026-01-31")
    ]
    assert {GROUPINGS["model"].group(row) for row in rows} == {"a, b"}


async def test_costs_and_budgets_are_those_of_the_ledger(site: ConsoleSite) -> None:
    tenant, services = site.judged.scripted.tenant, site.services
    organization = tenant.organization_id
    entries = [await site.judged.entry(await site.judged.chat()) for _ in range(2)]
    spent = sum(entry.cost_picousd or 0 for entry in entries)
    assert spent > 0
    await services.caps.cap_set(organization, 10**12, CapPeriod.MONTH)
    await services.caps.cap_set(organization, 10**11, CapPeriod.WEEK, tenant.project_id)
    query = f"?organization={organization}"
    async with http_client(site.address) as client:
        await client.post("/sign-in", data={"token": TOKEN})
        pages = {
            path: (await client.get(path)).text
            for path in (
                "/costs/all",
                f"/costs{query}",
                f"/budgets{query}",
                f"/keys{query}",
                f"/projects{query}",
            )
        }
    row = re.search(
        rf"<tr><th[^>]*><a href=\"/costs\?organization={organization}.*?</tr>", pages["/costs/all"]
    )
    assert row is not None
    assert row[0].count(f"${usd_from_picousd(spent)}<") == 2
    charts = {
        name: json.loads(data)
        for name, data in re.findall(
            r'<figure class="chart[^"]*" id="([^"]*)">\s*<script type="application/json">(.*?)</script>',
            pages[f"/costs{query}"] + pages[f"/budgets{query}"],
            re.DOTALL,
        )
    }
    hours = charts["hours"]["series"][0]["values"]
    assert len(hours) == 48
    assert round(sum(hours) * 10**12) == spent
    whole, own = charts["burn-down-1"]["series"], charts["burn-down-2"]["series"]
    assert round((1 - whole[0]["values"][-1]) * 10**12) == spent
    assert round((0.1 - own[0]["values"][-1]) * 10**12) == spent
    assert (whole[1]["values"][0], whole[1]["values"][-1]) == (1, 0)
    assert len(own[1]["values"]) == 8
    for path in (f"/keys{query}", f"/projects{query}"):
        assert (
            f'title="${usd_from_picousd(spent)}"' in pages[path]
            or f"${usd_from_picousd(spent)}" in pages[path]
        )
