"""Tests that admin keys can be created, used and revoked in the console, and that the audit shows it."""

import pytest
from playwright.async_api import expect

from tests.support.console_site import ConsoleSite, Watched, confirm

pytestmark = pytest.mark.slow


async def test_an_admin_key_is_made_used_and_revoked(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    organization = f"{site.address}/organizations/{tenant.organization_id}"
    await page.goto(organization)
    await page.get_by_label("New Admin API key").fill("reader")
    await page.get_by_label("Expires in days").fill("7")
    await page.get_by_label("admin_api_keys:read").check()
    await page.get_by_role("button", name="Create Admin API key").click()
    value = await page.locator("#key-value").text_content()
    assert value is not None
    assert value.startswith("tka_")
    client = site.judged.scripted.gateway.client
    headers = {"Authorization": f"Bearer {value}"}
    assert (await client.get("/v1/organization/admin_api_keys", headers=headers)).status_code == 200
    # Reloading the page sends the form again, but creates no second key.
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("was sent before")
    watched.faults.clear()  # The browser's console reports the status 409.
    await page.goto(organization)
    assert value not in await page.content()
    found = await site.services.admin_keys.admin_key_list(
        tenant.organization_id, after=None, limit=10
    )
    made = [key for key in found.keys if key.name == "reader"]
    assert [key.permissions for key in made] == [("admin_api_keys:read",)]
    assert made[0].expires_at is not None
    assert round((made[0].expires_at - made[0].created_at) / 86_400) == 7

    await page.get_by_role("button", name="Revoke reader").click()
    await confirm(page, "Revoke key")
    await expect(page.get_by_text("The key is revoked.")).to_be_visible()
    assert (await client.get("/v1/organization/admin_api_keys", headers=headers)).status_code == 401
    newest = (await site.services.audit.audit_list(organization_id=tenant.organization_id)).entries
    assert [entry.change.operation for entry in newest[:2]] == [
        "admin_key_revoke",
        "admin_key_create",
    ]
    assert all(entry.actor.kind == "console" for entry in newest[:2])
    assert value not in repr(newest)


async def test_an_admin_key_without_permissions_is_refused(
    site: ConsoleSite, watched: Watched
) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await page.goto(f"{site.address}/organizations/{tenant.organization_id}")
    before = await page.get_by_role("region", name="Admin API keys").locator("tbody tr").count()
    await page.get_by_label("New Admin API key").fill("nothing")
    await page.get_by_role("button", name="Create Admin API key").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    watched.faults.clear()  # The browser's console reports the status 400.
    rows = page.get_by_role("region", name="Admin API keys").locator("tbody tr")
    assert await rows.count() == before


async def test_a_key_of_another_organization_is_not_revoked(
    site: ConsoleSite, watched: Watched
) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    other = await site.judged.scripted.gateway.make_tenant()
    found = await site.services.admin_keys.admin_key_list(
        other.organization_id, after=None, limit=1
    )
    [key] = found.keys
    await page.goto(f"{site.address}/organizations/{tenant.organization_id}")
    button = page.get_by_role("region", name="Admin API keys").get_by_role("button").first
    await button.evaluate(
        "(button, id) => { button.form.action = button.form.action.replace(/[^/]*$/, id) }",
        str(key.id),
    )
    await button.click()
    await expect(page.get_by_role("alert")).to_contain_text("There is no such Admin API key.")
    watched.faults.clear()
    assert (await site.services.admin_keys.admin_key_show(key.id)).revoked_at is None
