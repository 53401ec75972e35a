"""Tests that rows of tables are cards on a phone, and that every action is on the screen."""

import pytest
from playwright.async_api import Browser

from tests.support.console_site import TOKEN, ConsoleSite, sign_in
from tests.support.http_client import http_client
from tollkeeper.console.rendering import _TEMPLATES, labelled, latency, percentile
from tollkeeper.domain.traffic import Latencies

# Returns the controls that are partly outside of the screen.
_OFF_SCREEN = """() => [...document.querySelector("main").querySelectorAll(
    "a, button, input, select, summary")]
  .filter(one => one.type !== "hidden" && one.checkVisibility())
  .map(one => [one, one.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.right > innerWidth + 1 || box.left < -1))
  .map(([one]) => one.outerHTML.slice(0, 120))"""


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


@pytest.mark.slow
async def test_no_action_is_off_screen_at_360_pixels(site: ConsoleSite, browser: Browser) -> None:
    tenant = site.judged.scripted.tenant
    entry = await site.judged.entry(await site.judged.chat())
    context = await browser.new_context(viewport={"width": 360, "height": 800})
    context.set_default_timeout(60_000)
    page = await context.new_page()
    await sign_in(page, site.address)
    organization = f"organization={tenant.organization_id}"
    problems = {}
    for path in (
        "/",
        f"/activity?{organization}",
        f"/activity/{entry.request_id}",
        "/organizations",
        f"/organizations/{tenant.organization_id}",
        f"/projects/{tenant.project_id}",
        f"/keys?{organization}",
        "/models",
        "/backends",
        "/payments",
        "/months",
        "/reconcile",
        "/audit",
    ):
        await page.goto(site.address + path)
        off = await page.evaluate(_OFF_SCREEN)
        if off:
            problems[path] = off
    await context.close()
    assert problems == {}
