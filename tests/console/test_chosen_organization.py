"""Tests that the console remembers the chosen organization from page to page, in each tab of its own."""

from collections.abc import AsyncIterator
from uuid import uuid4

import httpx2
import pytest
from playwright.async_api import Page, expect

from tests.support.console_site import TOKEN, ConsoleSite, Watched, form_fields
from tests.support.http_client import http_client
from tollkeeper.tenants.organization import Organization

# The pages that show one organization at a time.
_CHOOSERS = ("Costs", "Budgets", "Projects", "Keys", "Playground", "Policies")


@pytest.fixture
async def others(site: ConsoleSite) -> list[Organization]:
    """Makes two organizations, neither of which is the first one, which pages show by default."""
    services = site.services.organizations
    return [await services.organization_create(f"Other {uuid4()}") for _ in range(2)]


@pytest.fixture
async def operator(site: ConsoleSite) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(site.address) as client:
        await client.post("/sign-in", data={"token": TOKEN})
        yield client


async def _follow(page: Page, name: str) -> None:
    await page.locator("nav.links").get_by_role("link", name=name, exact=True).click()
    await expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()


async def _expect_chosen(page: Page, organization: Organization) -> None:
    chosen = page.locator(".chooser select option:checked")
    await expect(chosen).to_have_text(organization.name)


async def test_every_page_of_the_navigation_keeps_the_organization(
    site: ConsoleSite, watched: Watched, others: list[Organization]
) -> None:
    page, (other, _) = watched.page, others
    await page.goto(f"{site.address}/costs")
    await page.get_by_label("Organization").select_option(label=other.name)
    await _expect_chosen(page, other)
    titles = await page.locator("nav.links a").all_text_contents()
    assert set(_CHOOSERS) < set(titles)
    for title in titles:
        await page.locator("nav.links").get_by_role("link", name=title, exact=True).click()
        await page.wait_for_url(f"**{other.id}**")
        if title in _CHOOSERS:
            await _expect_chosen(page, other)
    # Pages of all organizations stay pages of all organizations.
    for title in ("Activity", "Audit"):
        await _follow(page, title)
        await expect(page.get_by_label("Organization")).to_have_value("")
        await page.get_by_role("button", name="Filter").click()
        await _follow(page, "Keys")
        await _expect_chosen(page, other)
        await _follow(page, title)
        await page.get_by_role("link", name="Clear").click()
        await _follow(page, "Keys")
        await _expect_chosen(page, other)


async def test_the_page_of_an_object_chooses_its_organization(
    site: ConsoleSite, watched: Watched, others: list[Organization]
) -> None:
    page, (other, another) = watched.page, others
    project = await site.services.projects.project_create(another.id, "Web")
    await page.goto(f"{site.address}/organizations/{other.id}")
    await _follow(page, "Budgets")
    await _expect_chosen(page, other)
    await page.goto(f"{site.address}/projects/{project.id}?organization={other.id}")
    await _follow(page, "Keys")
    await _expect_chosen(page, another)


async def test_two_tabs_remember_two_organizations(
    site: ConsoleSite, watched: Watched, others: list[Organization]
) -> None:
    tabs = [watched.page, await watched.page.context.new_page()]
    for tab, organization in zip(tabs, others, strict=True):
        await tab.goto(f"{site.address}/organizations/{organization.id}")
    for tab, organization in zip(tabs, others, strict=True):
        await _follow(tab, "Overview")
        await _follow(tab, "Projects")
        await _expect_chosen(tab, organization)


async def test_nothing_is_remembered_that_nobody_chose(site: ConsoleSite, watched: Watched) -> None:
    page = watched.page
    await page.goto(f"{site.address}/keys")
    for query in ("", "?recent=nonsense"):
        await page.goto(f"{site.address}/keys{query}")
        addresses = [
            await link.get_attribute("href") for link in await page.locator("nav.links a").all()
        ]
        assert not [address for address in addresses if "?" in (address or "")]


async def test_a_refused_form_stays_with_its_organization(
    operator: httpx2.AsyncClient, site: ConsoleSite, others: list[Organization]
) -> None:
    other, _ = others
    project = await site.services.projects.project_create(other.id, "Web")
    key, _ = await site.services.project_keys.project_key_create_by_operator(
        project.id, "app", None, None
    )
    selected = f'<option value="{other.id}" selected>'
    for page, form, fields in (
        (f"/projects?organization={other.id}", "/projects?", {"name": "Web"}),
        (f"/organizations/{other.id}", "/projects?", {"name": "Web"}),
        (f"/keys?organization={other.id}", f"/keys/{key.id}/set-cap", {"amount": "x"}),
        (f"/keys?organization={other.id}", f"/keys/{key.id}/rotate", {"grace_hours": "x"}),
        (f"/keys?organization={other.id}", f"/keys/{key.id}/allow-models", {"models": "no*"}),
    ):
        text = (await operator.get(page)).text
        action = next(
            part.partition('"')[0].replace("&amp;", "&")
            for part in text.split('action="')
            if part.startswith(form)
        )
        sent = {**await form_fields(operator, uuid4().hex), "organization": str(other.id), **fields}
        refused = await operator.post(action, data={**sent, "period": "month"})
        assert refused.status_code in (400, 409), (form, refused.status_code)
        assert selected in refused.text, form
