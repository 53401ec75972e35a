"""Tests that rows of tables are cards on a phone, and that every action is on the screen."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, Page

from tests.support.console_pages import make_objects, open_details, open_dialog, page_addresses
from tests.support.console_site import TOKEN, ConsoleSite, sign_in
from tests.support.http_client import http_client
from tollkeeper.console.rendering import _TEMPLATES, labelled, latency, percentile
from tollkeeper.reports.traffic.rule import Latencies

# At least this many pages have an action that asks for a confirmation.
_PAGES_WITH_DIALOGS = 9
# A small phone and a common one.
_WIDTHS = (360, 390)
# Returns the visible controls that are partly outside of the screen.
_OFF_SCREEN = """() => [...document.querySelectorAll(
    "a, button, input, select, textarea, summary")]
  .filter(one => one.type !== "hidden" && one.checkVisibility({ visibilityProperty: true }))
  .map(one => [one, one.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.right > innerWidth + 1 || box.left < -1))
  .map(([one]) => one.outerHTML.slice(0, 120))"""
# Returns the rows of tables that are no cards: a card is a block on the screen, and its cells are below each
# other. The waterfall of a call is a chart, whose rows stay rows.
_NO_CARDS = """() => [...document.querySelectorAll("table:not(.waterfall) :is(tbody, tfoot) tr")]
  .filter(row => row.checkVisibility())
  .filter(row => {
    const cells = [...row.cells].filter(one => getComputedStyle(one).display !== "none");
    const boxes = cells.map(one => one.getBoundingClientRect());
    return getComputedStyle(row).display !== "block"
      || row.getBoundingClientRect().right > innerWidth + 1
      || cells.some(one => getComputedStyle(one).display !== "flex")
      || boxes.some((box, number) => number && box.top < boxes[number - 1].bottom - 1);
  })
  .map(row => row.outerHTML.slice(0, 160))"""


def test_cells_get_the_heading_of_their_column() -> None:
    table = (
        '<thead><tr><th scope="col">Name</th><th scope="col" class="num"><b>A &amp; "B"</b></th></tr></thead>'
        '<tbody><tr><th scope="row">x</th><td class="num">1</td></tr></tbody>'
    )
    found = labelled(table)
    assert '<th data-label="Name" scope="row">x</th>' in found
    assert '<td data-label="A &amp; &#34;B&#34;" class="num">1</td>' in found
    assert found.count("data-label") == 2


def test_a_cell_after_a_wide_one_has_its_own_heading() -> None:
    head = "".join(f'<th scope="col">{name}</th>' for name in "ABC")
    foot = '<tr><th scope="row" colspan="2">Total</th><td class="num">1</td></tr>'
    assert '<td data-label="C" class="num">1</td>' in labelled(f"<tr>{head}</tr>{foot}")


def test_every_table_gives_its_cells_headings() -> None:
    """The macro adds the headings, so only the macro file contains a table."""
    tables = {file.name: file.read_text().count("<table") for file in _TEMPLATES.glob("*.html")}
    assert {name for name, count in tables.items() if count} == {"macros.html"}


def test_percentiles_need_twenty_calls() -> None:
    few, enough = Latencies({10: 19}), Latencies({10: 20})
    assert latency(percentile(few, 0.5)) == "Too few calls"
    assert latency(percentile(enough, 0.5)) == "3 ms"


async def test_a_chart_has_a_title(site: ConsoleSite) -> None:
    organization = site.judged.scripted.tenant.organization_id
    await site.judged.entry(await site.judged.chat())
    async with http_client(site.address) as client:
        await client.post("/sign-in", data={"token": TOKEN})
        page = (await client.get(f"/activity?organization={organization}")).text
    assert "<figcaption>Calls over time by status</figcaption>" in page


@asynccontextmanager
async def _phone(browser: Browser, site: ConsoleSite) -> AsyncIterator[Page]:
    """Yields a page of a narrow screen, on which an operator is signed in."""
    context = await browser.new_context(viewport={"width": _WIDTHS[0], "height": 800})
    context.set_default_timeout(60_000)
    page = await context.new_page()
    await sign_in(page, site.address)
    yield page
    await context.close()


async def _problems(page: Page) -> list[str]:
    """Opens all parts of the page and its first dialog. Returns actions that are off-screen, and rows of
    tables that are no cards."""
    await open_details(page)
    problems = []
    for width in _WIDTHS:
        await page.set_viewport_size({"width": width, "height": 800})
        problems += await page.evaluate(_OFF_SCREEN) + await page.evaluate(_NO_CARDS)
    if await open_dialog(page):
        for width in _WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            problems += await page.evaluate(_OFF_SCREEN)
    return problems


async def test_a_table_is_cards_only_on_a_narrow_screen(
    site: ConsoleSite, browser: Browser
) -> None:
    organization = f"organization={site.judged.scripted.tenant.organization_id}"
    async with _phone(browser, site) as page:
        await page.goto(f"{site.address}/keys?{organization}")
        assert await _problems(page) == []
        assert await page.locator("dialog[open]").count() == 1
        await page.set_viewport_size({"width": 1280, "height": 800})
        assert len(await page.evaluate(_NO_CARDS)) == 1


@pytest.mark.slow
async def test_every_page_fits_on_a_phone(site: ConsoleSite, browser: Browser) -> None:
    problems, dialogs = {}, 0
    addresses = page_addresses(await make_objects(site))
    async with _phone(browser, site) as page:
        for address in addresses:
            await page.goto(site.address + address)
            found = await _problems(page)
            if found:
                problems[address] = found
            dialogs += await page.locator("dialog[open]").count()
    assert problems == {}
    assert dialogs >= _PAGES_WITH_DIALOGS
