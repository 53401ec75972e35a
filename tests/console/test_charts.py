"""Tests charts as Plotly draws them, with data that a page could contain."""

import json
from decimal import Decimal
from typing import Any

import pytest
from playwright.async_api import Page

from tests.support.console_site import ConsoleSite, Watched
from tollkeeper.console.charts import counted_days, stacked_days, threshold_chart

pytestmark = pytest.mark.slow

_DAYS = ("2026-01-01", "2026-01-02")
_COUNTS = (0, 1, 2, 3, 4, 7, 9, 10, 12, 990, 1_500_000)
# Replaces the data of the page's first chart, draws it, and returns the labels of the y axis.
_DRAW = """async (data) => {
    const figure = document.querySelector("figure.chart");
    figure.querySelector("script").textContent = data;
    await drawChart(figure);
    return [...figure.querySelectorAll(".ytick text")].map(tick => tick.textContent);
}"""


@pytest.fixture
async def page_with_chart(site: ConsoleSite, watched: Watched) -> Page:
    # The page has a chart only if there are records of calls.
    assert (await site.judged.entry(await site.judged.chat("Hello"))).status == 200
    await watched.page.goto(f"{site.address}/")
    await watched.page.wait_for_function("document.querySelector('figure.chart').dataset.drawn")
    return watched.page


async def _ticks(page: Page, chart: dict[str, Any]) -> list[str]:
    ticks: list[str] = await page.evaluate(_DRAW, json.dumps(chart))
    return ticks


def _is_whole(tick: str) -> bool:
    """Tells whether the label is a whole number, such as `3` or `1.5k`, but not `500m`."""
    digits = tick.rstrip("kMm")
    thousandths = {"m": 1, "k": 10**6, "M": 10**9}.get(tick[len(digits) :], 10**3)
    return Decimal(digits) * thousandths % 1000 == 0


async def test_ticks_of_counts_are_whole(page_with_chart: Page) -> None:
    for count in _COUNTS:
        counted = counted_days(_DAYS, {"calls": (count, 0), "matches": (count // 2, 0)})
        for chart in (
            counted,
            {**counted, "beside": False},
            threshold_chart([(5000, count)], 4000),
        ):
            ticks = await _ticks(page_with_chart, chart)
            # There are at least two labels, and all are different.
            assert 2 <= len(ticks) == len(set(ticks)) <= 12, (chart, ticks)
            assert all(_is_whole(tick) for tick in ticks), (chart, ticks)


async def test_ticks_of_money_are_not(page_with_chart: Page) -> None:
    ticks = await _ticks(page_with_chart, stacked_days(_DAYS, {"model": ("0.003", "0")}))
    assert ticks[0] == "$0"
    assert any("." in tick for tick in ticks), ticks


_NAME = '<a href="https://evil.example/">& <b>free</b></a> &lt;i&gt; $x$'


async def test_a_name_is_text_in_every_part_of_a_chart(page_with_chart: Page) -> None:
    """Plotly would turn a text that looks like a link into a link."""
    names = {_NAME: ("1", "2"), "model": ("3", "4")}
    await _ticks(page_with_chart, stacked_days(_DAYS, names))
    figure = page_with_chart.locator("figure.chart").first
    assert set(await figure.locator(".legendtext").all_text_contents()) == set(names)
    await figure.scroll_into_view_if_needed()
    box = await figure.locator(".plot .nsewdrag").bounding_box()
    assert box is not None
    await page_with_chart.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
    shown = figure.locator(".hoverlayer .legendtext")
    await shown.first.wait_for()
    texts = await shown.all_text_contents()
    assert {text.rpartition(" : ")[0] for text in texts} == set(names), texts
    for tag in ("a", "b", "i"):
        assert await figure.locator(f".plot {tag}").count() == 0


async def test_a_key_with_a_hostile_name_is_no_link(site: ConsoleSite, watched: Watched) -> None:
    scripted = site.judged.scripted
    _, secret = await site.services.project_keys.project_key_create_by_operator(
        scripted.tenant.project_id, _NAME, None, None
    )
    for headers in ({"Authorization": f"Bearer {secret}"}, scripted.tenant.as_customer):
        answer = await scripted.chat(headers=headers)
        assert (await scripted.activity_of(answer)).settlement == "settled"
    organization = scripted.tenant.organization_id
    await watched.page.goto(f"{site.address}/costs?organization={organization}&by=key")
    await watched.page.wait_for_function("document.querySelector('figure.chart').dataset.drawn")
    assert await watched.page.locator("a[href*=evil], a[*|href*=evil]").count() == 0
    assert _NAME in await watched.page.locator("table").first.inner_text()
