"""Tests the pages about calls over time: client errors are not failures, and dragging over a bar selects
its calls."""

import re
from collections.abc import Sequence
from uuid import UUID

import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.activity_records import record_of, written
from tests.support.books import Books
from tests.support.console_site import ConsoleSite, Watched
from tests.support.scripted_gateway import MODEL
from tollkeeper.core.access import KeyId
from tollkeeper.reports.traffic.rule import STEP_S

pytestmark = pytest.mark.slow

_HOUR_S, _DAY_S = 3600, 86_400
# Of ten calls, three have client errors (4xx) and two fail (5xx).
_STATUSES = (200, 200, 200, 200, 200, 400, 403, 429, 502, 503)


async def _record_calls(site: ConsoleSite, at_s: int, statuses: Sequence[int]) -> list[UUID]:
    """Write records of calls to the scripted backend that started at `at_s`, and return their ids."""
    tenant = site.judged.scripted.tenant
    key = (await site.services.project_keys.project_key_list(tenant.project_id))[0]
    books = Books(site.services, tenant.organization_id, tenant.project_id, KeyId(key.id))
    records = [
        record_of(
            books,
            model=MODEL,
            status=status,
            started_at_ms=at_s * 1000,
            backend="scripted",
            replica=site.judged.model.url,
            verdicts=(),
        )
        for status in statuses
    ]
    await written(site.services.activity, *records)
    return [UUID(record.request_id) for record in records]


async def _cells(table: Locator, row: str) -> dict[str, str]:
    """Return the cells of one row of a table by the titles of their columns."""
    titles = await table.get_by_role("columnheader").all_inner_texts()
    found = table.get_by_role("row").filter(has_text=row).first
    return dict(zip(titles, await found.locator("th, td").all_inner_texts(), strict=True))


async def test_client_errors_and_failures_are_apart(site: ConsoleSite, watched: Watched) -> None:
    page = watched.page
    # No other test records calls in this hour.
    start = (site.services.clock() - 9 * _DAY_S) // _HOUR_S * _HOUR_S
    await _record_calls(site, start + 60, _STATUSES)
    query = f"since={start}&until={start + _HOUR_S}"
    titles = ("Calls", "Client errors (4xx)", "Failures (5xx)")

    await page.goto(f"{site.address}/?{query}")
    for title, text in zip(titles[1:], ("30.0 %", "20.0 %"), strict=True):
        tile = page.locator(".tile").filter(has_text=title)
        await expect(tile.locator("dd").first).to_have_text(text)
    pages = (
        ("/", "Latency by model", MODEL),
        ("/backends", "Replicas of scripted", site.judged.model.url),
        ("/models", "Models", MODEL),
    )
    for path, label, row in pages:
        await page.goto(f"{site.address}{path}?{query}")
        table = page.get_by_role("group", name=label, exact=True)
        cells = await _cells(table, row)
        assert [cells[title] for title in titles] == ["10", "30.0 %", "20.0 %"], path


async def test_a_denied_call_is_no_failure_of_a_backend(
    site: ConsoleSite, watched: Watched
) -> None:
    page = watched.page

    async def counted() -> list[str]:
        await page.goto(f"{site.address}/backends?range=1h")
        table = page.get_by_role("group", name="Replicas of scripted", exact=True)
        return list(await table.get_by_role("row").all_inner_texts())

    before = await counted()
    await site.judged.enforce("bomb", direction="request")
    denied = await site.judged.chat("a bomb")
    assert denied.status_code == 403
    assert (await site.judged.entry(denied)).status == 403
    assert await counted() == before


async def _drag(page: Page, box: Locator) -> None:
    """Drag over the whole width of a bar."""
    await box.scroll_into_view_if_needed()
    found = await box.bounding_box()
    area = await page.locator("#volume .nsewdrag").bounding_box()
    assert found is not None
    assert area is not None
    y = area["y"] + area["height"] / 2
    await page.mouse.move(found["x"] + 1, y)
    await page.mouse.down()
    await page.mouse.move(found["x"] + found["width"] - 1, y, steps=8)
    await page.mouse.up()


async def test_dragging_over_a_bar_keeps_its_calls(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    step = (site.services.clock() - 8 * _DAY_S) // _DAY_S * _DAY_S
    # A bar covers five minutes in a view of one hour, and one hour in a view of two days.
    for hours, width in ((1, STEP_S), (48, _HOUR_S)):
        step += 2 * _DAY_S
        # Two calls are in the first and the last second of a bar, and two just outside of it.
        bar = step + 2 * width
        inside = await _record_calls(site, bar, [200])
        inside += await _record_calls(site, bar + width - 1, [200])
        await _record_calls(site, bar - 1, [200])
        await _record_calls(site, bar + width, [200])
        query = f"organization={tenant.organization_id}&since={step}&until={step + hours * _HOUR_S}"
        await page.goto(f"{site.address}/activity?{query}")
        await page.wait_for_function("document.querySelector('#volume').dataset.drawn === 'yes'")
        await _drag(page, page.locator("#volume .trace.bars").first.locator("path").nth(2))
        await page.wait_for_url(re.compile(rf"since={bar}\b"))
        rows = page.locator("#calls tbody tr")
        await expect(rows).to_have_count(2)
        shown = await rows.locator("a").evaluate_all(
            "links => links.map(one => one.getAttribute('href'))"
        )
        assert set(shown) == {f"/activity/{one}" for one in inside}
