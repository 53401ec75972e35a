"""Tests what a person sees at once: colours of caps, gaps between cards, and the end of the navigation."""

from itertools import pairwise

import pytest
from playwright.async_api import expect

from tests.support.console_site import ConsoleSite, Watched
from tollkeeper.money.caps.rule import CapPeriod

# The colour of a `<meter>`, by the rules of HTML: the best region has the lowest values.
_COLOUR = """one => one.optimum >= one.low ? "unknown"
  : one.value <= one.low ? "green" : one.value <= one.high ? "amber" : "red" """
# The largest gap that is intended between two cards.
_GAP_MAX_PX = 20


async def _spend(site: ConsoleSite) -> int:
    entry = await site.judged.entry(await site.judged.chat())
    assert entry.cost_picousd
    return entry.cost_picousd


@pytest.mark.parametrize(
    ("used_percent", "colour", "badge"),
    [
        (79, "green", None),
        (85, "amber", None),
        (100, "red", "100.0 %"),
        (314, "red", "314.0 %"),
    ],
)
async def test_a_cap_that_is_used_up_is_red(
    site: ConsoleSite, watched: Watched, used_percent: int, colour: str, badge: str | None
) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    spent = await _spend(site)
    cap = spent * 100 // used_percent
    await site.services.caps.cap_set(tenant.organization_id, cap, CapPeriod.MONTH)
    for path in ("organizations/", "budgets?organization="):
        await page.goto(f"{site.address}/{path}{tenant.organization_id}")
        meter = page.get_by_role("meter", name="Used of the cap")
        assert await meter.evaluate(_COLOUR) == colour
        shown = page.locator(".fill .badge")
        if badge is None:
            await expect(shown).to_have_count(0)
        else:
            await expect(shown).to_have_text(badge)


async def test_the_cards_of_an_organization_have_no_gaps(
    site: ConsoleSite, watched: Watched
) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    for period in (CapPeriod.DAY, CapPeriod.WEEK, CapPeriod.MONTH):
        await site.services.caps.cap_set(tenant.organization_id, 10**12, period)
    for width in (1024, 1280, 1680):
        await page.set_viewport_size({"width": width, "height": 900})
        await page.goto(f"{site.address}/organizations/{tenant.organization_id}")
        boxes = [await card.bounding_box() for card in await page.locator(".columns .card").all()]
        columns: dict[float, list[tuple[float, float]]] = {}
        for box in filter(None, boxes):
            columns.setdefault(box["x"], []).append((box["y"], box["y"] + box["height"]))
        assert len(columns) == 2, width
        for column in columns.values():
            for (_, end), (start, _) in pairwise(sorted(column)):
                assert 0 < start - end <= _GAP_MAX_PX, (width, column)


@pytest.mark.parametrize(("width", "height"), [(900, 900), (1280, 900), (1280, 600)])
async def test_signing_out_is_always_in_sight(
    site: ConsoleSite, watched: Watched, width: int, height: int
) -> None:
    page = watched.page
    await page.set_viewport_size({"width": width, "height": height})
    await page.goto(f"{site.address}/costs")
    button = page.locator("nav.links").get_by_role("button", name="Sign out everywhere")
    box = await button.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= height
    # The last link can still be reached below it.
    last = page.locator("nav.links a").last
    await last.click()
    await expect(page.get_by_role("heading", level=1, name="People")).to_be_visible()
