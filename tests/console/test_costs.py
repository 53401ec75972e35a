"""Tests that the chart, tables and file of the costs page show the same numbers as the API."""

import csv
import io
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from playwright.async_api import BrowserContext

from tests.support.console_site import TOKEN, serving_console, sign_in, watched_page
from tests.support.gateway import Gateway
from tests.support.http_client import http_client
from tests.support.known_costs import DAY_S, FIRST_DAY, KnownCosts, make_known_costs
from tollkeeper.core.money import PICOUSD_PER_USD, exact_usd
from tollkeeper.setup.settings import Settings

# The dimension of the API for each grouping of the page. The page sums the line items of a model.
_DIMENSIONS = {
    "model": "line_item",
    "project": "project_id",
    "key": "api_key_id",
    "line_item": "line_item",
}
_DAYS = 10


@pytest.fixture(scope="module")
async def address(settings: Settings, gateway: Gateway) -> AsyncIterator[str]:
    """Starts a console with the services of the shared gateway. Yields its address."""
    async with serving_console(settings, gateway.services) as running:
        yield running


@pytest.fixture
async def known(gateway: Gateway) -> KnownCosts:
    return await make_known_costs(gateway)


def _query(known: KnownCosts, by: str, more: str = "") -> str:
    start, end = FIRST_DAY * DAY_S, (FIRST_DAY + _DAYS) * DAY_S
    return f"organization={known.tenant.organization_id}&by={by}&since={start}&until={end}{more}"


async def _reported(known: KnownCosts, by: str, more: str = "") -> dict[str, list[Decimal]]:
    """Returns the amounts from the API: for each group, one amount for each day."""
    dimension = _DIMENSIONS[by]
    answer = await known.report(f"group_by={dimension}&limit=100{more}")
    assert answer.status_code == 200, answer.text
    buckets: list[dict[str, Any]] = answer.json()["data"]
    assert len(buckets) == _DAYS
    amounts: dict[str, list[Decimal]] = defaultdict(lambda: [Decimal()] * _DAYS)
    for number, bucket in enumerate(buckets):
        for result in bucket["results"]:
            group = result[dimension]
            if by == "model":
                group = group.rpartition(", ")[0]
            amounts[group][number] += Decimal(result["amount"]["value"])
    return dict(amounts)


def _shown(amounts: Sequence[Decimal | int]) -> str:
    return exact_usd(int(sum(amounts) * PICOUSD_PER_USD))


@pytest.mark.slow
@pytest.mark.parametrize("by", list(_DIMENSIONS))
async def test_the_chart_and_the_table_show_the_numbers_of_the_api(
    address: str, known: KnownCosts, context: BrowserContext, by: str
) -> None:
    watched = await watched_page(context)
    page = watched.page
    await sign_in(page, address)
    await page.goto(f"{address}/costs?{_query(known, by)}")
    await page.wait_for_function("document.querySelector('#costs').dataset.drawn === 'yes'")
    reported = await _reported(known, by)
    # This is the data that Plotly has drawn, not the data in the page.
    drawn = await page.evaluate(
        "document.querySelector('#costs .plot').data.map(one => ({name: one.name, x: one.x, y: one.y}))"
    )
    assert all(len(trace["x"]) == _DAYS for trace in drawn)
    assert sorted(trace["y"] for trace in drawn) == sorted(
        [float(amount) for amount in amounts] for amounts in reported.values()
    )
    rows = await page.locator("#cost-table tbody tr").all()
    shown = {
        await row.get_attribute("data-group"): await row.locator("td").first.text_content()
        for row in rows
    }
    assert shown == {group: _shown(amounts) for group, amounts in reported.items()}
    total = await page.locator("#cost-total").get_attribute("data-exact")
    assert total == _shown([sum(amounts) for amounts in reported.values()])
    assert watched.faults == []


@pytest.mark.slow
async def test_a_filter_by_project_is_the_api_s_filter(
    address: str, known: KnownCosts, context: BrowserContext
) -> None:
    page = await context.new_page()
    await sign_in(page, address)
    chosen = known.projects[1]
    await page.goto(f"{address}/costs?{_query(known, 'key', f'&project={chosen}')}")
    reported = await _reported(known, "key", f"&project_ids={chosen}")
    assert len(reported) == 2
    total = await page.locator("#cost-total").get_attribute("data-exact")
    assert total == _shown([sum(amounts) for amounts in reported.values()])


async def test_costs_by_model_are_sums_of_line_items(address: str, known: KnownCosts) -> None:
    async with http_client(address) as client:
        await client.post("/sign-in", data={"token": TOKEN})
        answer = await client.get(f"/costs.csv?{_query(known, 'model')}")
    found: dict[str, Decimal] = defaultdict(Decimal)
    for row in csv.DictReader(io.StringIO(answer.text)):
        found[row["model"]] += Decimal(row["amount_usd"])
    reported = await _reported(known, "model")
    assert set(reported) == {"acme/large", "small"}
    assert found == {model: sum(amounts) for model, amounts in reported.items()}


async def test_the_file_has_the_same_numbers(address: str, known: KnownCosts) -> None:
    async with http_client(address) as client:
        await client.post("/sign-in", data={"token": TOKEN})
        answer = await client.get(f"/costs.csv?{_query(known, 'line_item')}")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    reported = await _reported(known, "line_item")
    assert sum(Decimal(row["amount_usd"]) for row in rows) == sum(map(sum, reported.values()))
    assert {row["line_item"] for row in rows} == set(reported)
    assert len(rows) == 3 * (_DAYS - 1)  # The fourth day has no cost.


@pytest.mark.parametrize("path", ["/costs", "/costs.csv"])
async def test_a_report_of_more_than_ten_years_is_refused(
    address: str, known: KnownCosts, path: str
) -> None:
    query = f"organization={known.tenant.organization_id}&since=2000-01-01&until=2026-01-01"
    async with http_client(address) as client:
        await client.post("/sign-in", data={"token": TOKEN})
        answer = await client.get(f"{path}?{query}")
    assert answer.status_code == 400
    assert "at most 3660 days" in answer.text


async def test_names_cannot_become_formulas(
    address: str, known: KnownCosts, gateway: Gateway
) -> None:
    made = await gateway.services.projects.project_create(
        known.tenant.organization_id, "=HYPERLINK(1)"
    )
    async with gateway.services.database.transaction() as connection:
        await connection.execute(
            "UPDATE cost_rollup SET project_id = %s WHERE organization_id = %s",
            (made.id, known.tenant.organization_id),
        )
    async with http_client(address) as client:
        await client.post("/sign-in", data={"token": TOKEN})
        answer = await client.get(f"/costs.csv?{_query(known, 'project')}")
    names = {row["project"] for row in csv.DictReader(io.StringIO(answer.text))}
    assert names == {"'=HYPERLINK(1)"}
