"""Tests that all actions for a key are visible on a screen of ordinary width."""

import pytest
from playwright.async_api import Browser

from tests.support.console_site import ConsoleSite, sign_in, watched_page
from tollkeeper.core.access import PROJECT_KEY_PERMISSIONS
from tollkeeper.money.caps.rule import CapPeriod

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [1280, 1440])
async def test_every_action_is_inside_of_the_table(
    site: ConsoleSite, browser: Browser, width: int
) -> None:
    services, tenant = site.services, site.judged.scripted.tenant
    key, _ = await services.project_keys.project_key_create_by_operator(
        tenant.project_id,
        "Production server in Frankfurt",
        sorted(PROJECT_KEY_PERMISSIONS),
        8_640_000,
    )
    await services.caps.cap_set(
        tenant.organization_id, 12_345_678_901_234, CapPeriod.MONTH, key_id=key.id
    )
    context = await browser.new_context(viewport={"width": width, "height": 900})
    page = (await watched_page(context)).page
    await sign_in(page, site.address)
    await page.goto(f"{site.address}/keys?organization={tenant.organization_id}")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="app", exact=True))
    rotate = row.locator('summary[aria-label="Rotate app"]')
    await rotate.click()
    await page.locator(f'summary[aria-label="Set cap of {key.name}"]').click()
    table = await page.get_by_role("group", name="Keys", exact=True).bounding_box()
    assert table is not None
    for action in (
        rotate,
        row.get_by_label("Hours until the old key expires"),
        row.get_by_role("button", name="Rotate now"),
        page.get_by_role("button", name=f"Set cap of {key.name}"),
        *(
            page.get_by_role("button", name=f"{verb} {name}", exact=True)
            for verb in ("Suspend", "Revoke")
            for name in ("app", key.name)
        ),
    ):
        box = await action.bounding_box()
        assert box is not None
        assert box["x"] >= table["x"], action
        assert box["x"] + box["width"] <= table["x"] + table["width"], action
    await context.close()
