"""Tests that the pages about costs and budgets show the ledger's numbers to the last digit."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import quote

from tests.support.changed_services import changed
from tests.support.console_site import TOKEN, ConsoleSite, serving_console
from tests.support.http_client import http_client
from tests.support.scripted_gateway import MODEL
from tollkeeper.console.months_compared import (
    MonthsCompared,
    compare_months,
    month_start,
    two_months,
)
from tollkeeper.core.catalog import Catalog
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.reports import CostRow
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.reports.costs.columns import COST_GROUPINGS
from tollkeeper.setup.services import Services
from tollkeeper.tenants.models import CurrentCatalog


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
    assert {COST_GROUPINGS["model"].group(row) for row in rows} == {"a, b"}


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
    [key] = await services.project_keys.project_key_list(tenant.project_id)
    for path, row_id in ((f"/keys{query}", key.id), (f"/projects{query}", tenant.project_id)):
        assert _this_month(pages[path], str(row_id)) == f"${usd_from_picousd(spent)}", path


def _this_month(page: str, row_id: str) -> str:
    """Returns the exact amount in the column "This month" of the row whose first cell has a link with
    this text."""
    rows = re.findall(r"<tr><th data-label=.*?</tr>", page, re.DOTALL)
    [row] = [row for row in rows if row_id in row.partition("</th>")[0]]
    [cell] = re.findall(r'<td data-label="This month"[^>]*>(.*?)</td>', row, re.DOTALL)
    return _exact(cell)


def _exact(shown: str) -> str:
    """Returns the exact amount, which is the tooltip of a rounded amount."""
    rounded = re.fullmatch(r'<span title="([^"]*)">.*</span>', shown)
    return rounded[1] if rounded else shown


async def test_models_show_the_spend_of_all_organizations(site: ConsoleSite) -> None:
    other = await site.for_next_test()
    for judged in (site.judged, other.judged):
        await judged.entry(await judged.chat())
    now = site.services.clock()
    async with site.services.database.autocommit() as connection:
        cursor = await connection.execute(
            """
            SELECT sum(d.settled + coalesce(o.amount, 0)), count(DISTINCT r.organization_id)
            FROM reservations r JOIN resolutions d ON d.reservation_id = r.id
            LEFT JOIN overages o ON o.reservation_id = r.id
            WHERE r.model = %s AND r.held_at >= to_timestamp(%s)
            """,
            (MODEL, month_start(now)),
        )
        [[spent, organizations]] = await cursor.fetchall()
    assert organizations >= 2
    exact = f"${usd_from_picousd(int(spent))}"
    page = await _models(site, site.services)
    assert _this_month(page, quote(MODEL)) == exact
    assert "no longer in the catalogue" not in page
    next_month = changed(site.services, clock=lambda: now + 40 * 86_400)
    assert _this_month(await _models(site, next_month), quote(MODEL)) == "$0"
    renamed = replace(site.services.catalog.catalog.find(MODEL), id="example/renamed")
    catalog = CurrentCatalog(Catalog((renamed,)))
    page = await _models(site, changed(site.services, catalog=catalog))
    assert _this_month(page, "example/renamed") == "$0"
    said = re.search(r"Models that are no longer in the catalogue cost (.*)\.</p>", page)
    assert said is not None
    assert _exact(said[1]) == exact


async def _models(site: ConsoleSite, services: Services) -> str:
    async with (
        serving_console(site.settings, services) as address,
        http_client(address) as client,
    ):
        await client.post("/sign-in", data={"token": TOKEN})
        return (await client.get("/models")).text
