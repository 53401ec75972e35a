"""Tests every page: no script errors, no violations of the content security policy, no accessibility problems,
and no page that is wider than its screen."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal
from uuid import uuid4

import pytest
from playwright.async_api import Browser, Page

from tests.support.console_pages import (
    form_views,
    general_paths,
    make_objects,
    open_details,
    open_view,
    page_addresses,
    page_paths,
)
from tests.support.console_site import (
    TOKEN,
    ConsoleSite,
    Watched,
    charts_are_drawn,
    make_session,
    serving_console,
    sign_in,
    watched_page,
)
from tests.support.databases import own_database
from tests.support.http_client import http_client
from tollkeeper.console.sessions import TOKEN_HOLDER
from tollkeeper.setup import running_services
from tollkeeper.tenants.people import Person, Role

pytestmark = pytest.mark.slow

_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_PATIENCE_MS = 60_000
_NO_SUCH_PAGE = "/no-such-page"
both_widths = pytest.mark.parametrize("width", [390, 1280])


async def _addresses(site: ConsoleSite) -> list[str]:
    ids = await make_objects(site)
    await _long_names(site)
    return [*page_addresses(ids), _NO_SUCH_PAGE]


async def _long_names(site: ConsoleSite) -> None:
    """Creates objects with a very long name that cannot be broken. It must fit on every page."""
    name = "W" * 224 + uuid4().hex.upper()
    services, tenant = site.services, site.judged.scripted.tenant
    project = await services.projects.project_create(tenant.organization_id, name)
    await services.project_keys.project_key_create_by_operator(project.id, name, None, None)
    await services.organizations.organization_create(name)


async def _violations(page: Page, axe: str) -> list[str]:
    """Returns all that the accessibility checker finds, whatever its impact, in light and dark colours."""
    # The debugger runs the checker, because the content security policy does not apply to it.
    await page.evaluate(axe)
    violations = []
    for scheme in _SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        found: dict[str, Any] = await page.evaluate(
            "axe.run(document, {resultTypes: ['violations']})"
        )
        violations += [
            f"{scheme}, {one['id']}: {json.dumps([node['html'] for node in one['nodes'][:3]])}"
            for one in found["violations"]
        ]
    return violations


@asynccontextmanager
async def _signed_in(
    browser: Browser, site: ConsoleSite, width: int, person: Person = TOKEN_HOLDER
) -> AsyncIterator[Watched]:
    """Yields a page on which the person is signed in. Colours change at once, not in a transition."""
    context = await browser.new_context(
        viewport={"width": width, "height": 844}, reduced_motion="reduce"
    )
    context.set_default_timeout(_PATIENCE_MS)
    cookies = (await make_session(site, person)).items()
    await context.add_cookies(
        [{"name": name, "value": value, "url": site.address} for name, value in cookies]
    )
    yield await watched_page(context)
    await context.close()


async def _have_no_problem(watched: Watched, address: str, paths: Iterable[str], axe: str) -> None:
    """Opens the pages with all their parts. Fails with the problems of all pages."""
    page = watched.page
    problems: dict[str, object] = {}
    for path in paths:
        watched.faults.clear()
        answer = await page.goto(address + path)
        assert answer is not None
        await open_details(page)
        await charts_are_drawn(page)
        expected = 404 if path == _NO_SUCH_PAGE else 200
        wider = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        violations = await _violations(page, axe)
        # If a page is not found, the browser reports this in its console.
        faults = [] if answer.status == 404 else list(watched.faults)
        if answer.status != expected or faults or wider > 0 or violations:
            problems[path] = (answer.status, faults, wider, violations)
    assert not problems, json.dumps(problems, indent=1)


@pytest.mark.smoke
async def test_every_page_answers(site: ConsoleSite) -> None:
    paths = await _addresses(site)
    async with http_client(site.address) as client:
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        found = {path: (await client.get(path)).status_code for path in paths}
    assert found == {path: 404 if path == _NO_SUCH_PAGE else 200 for path in paths}


@pytest.mark.smoke
async def test_a_page_is_accessible(site: ConsoleSite, browser: Browser, axe_script: str) -> None:
    organization = f"/organizations/{site.judged.scripted.tenant.organization_id}"
    async with _signed_in(browser, site, 390) as watched:
        await _have_no_problem(watched, site.address, [organization], axe_script)


@both_widths
async def test_every_page(site: ConsoleSite, browser: Browser, axe_script: str, width: int) -> None:
    addresses = await _addresses(site)
    async with _signed_in(browser, site, width) as watched:
        await _have_no_problem(watched, site.address, addresses, axe_script)


@both_widths
@pytest.mark.parametrize("role", [Role.VIEWER, Role.ORGANIZATION])
async def test_every_page_of_a_role(
    site: ConsoleSite, browser: Browser, axe_script: str, role: Role, width: int
) -> None:
    ids = await make_objects(site)
    own = site.judged.scripted.tenant.organization_id if role is Role.ORGANIZATION else None
    person = Person("p.ruiz", "P. Ruiz", role, own)
    async with _signed_in(browser, site, width, person) as watched:
        paths = page_paths(ids, role)
        await _have_no_problem(watched, site.address, paths, axe_script)


@both_widths
async def test_every_page_without_data(
    site: ConsoleSite, browser: Browser, axe_script: str, width: int, shared_conninfo: str
) -> None:
    conninfo = own_database(shared_conninfo, f"empty_{width}")
    async with (
        running_services(site.settings, conninfo) as services,
        serving_console(site.settings, services) as address,
        _signed_in(browser, site, width) as watched,
    ):
        await sign_in(watched.page, address)
        await _have_no_problem(watched, address, general_paths(), axe_script)


@both_widths
async def test_every_result_of_a_form(
    site: ConsoleSite, browser: Browser, axe_script: str, width: int
) -> None:
    problems = {}
    async with _signed_in(browser, site, width) as watched:
        for view in form_views(await make_objects(site)):
            watched.faults.clear()
            await open_view(watched.page, site.address, view)
            await charts_are_drawn(watched.page)
            wider = await watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            violations = await _violations(watched.page, axe_script)
            # The browser's console reports the status 400 of a wrong input.
            faults = [] if view.shows == ".notice.bad" else list(watched.faults)
            if faults or wider > 0 or violations:
                problems[view.name] = (faults, wider, violations)
    assert not problems, json.dumps(problems, indent=1)


async def test_sign_in_page_is_accessible(
    site: ConsoleSite, browser: Browser, axe_script: str
) -> None:
    # Colours change at once, not in a transition, so that the checker never sees them half changed.
    context = await browser.new_context(reduced_motion="reduce")
    page = await context.new_page()
    await page.goto(f"{site.address}/sign-in")
    assert await _violations(page, axe_script) == []
    await context.close()


async def test_pages_work_without_scripts(site: ConsoleSite, browser: Browser) -> None:
    """Charts need scripts, but their numbers are also in tables."""
    tenant = site.judged.scripted.tenant
    answered = await site.judged.chat()
    await site.judged.entry(answered)
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await sign_in(page, site.address)
    await page.goto(f"{site.address}/costs?organization={tenant.organization_id}&by=line_item")
    rows = await page.locator("#cost-table tbody tr").count()
    assert rows == 2
    await page.goto(f"{site.address}/organizations/{tenant.organization_id}")
    await page.get_by_label("Amount in USD").fill("2.5")
    await page.get_by_role("button", name="Grant credit").click()
    await page.get_by_role("heading", name="Grant $2.50?").wait_for()
    assert (
        await site.services.accounts.credit_show(tenant.organization_id)
    ).granted_picousd == 10**13
    await page.get_by_role("button", name="Grant $2.50").click()
    await page.get_by_text("$2.50 was granted.").wait_for()
    balance = await site.services.accounts.credit_show(tenant.organization_id)
    assert balance.granted_picousd == 10**13 + 25 * 10**11
    await context.close()


async def test_every_page_is_reached_by_keyboard(site: ConsoleSite, browser: Browser) -> None:
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    await sign_in(page, site.address)
    seen = set()
    for _ in range(40):
        await page.keyboard.press("Tab")
        seen.add(
            await page.evaluate(
                "document.activeElement.closest('nav.links') && document.activeElement.textContent"
            )
        )
    assert {"Overview", "Activity", "Costs", "Unsettled", "Keys", "Policies", "Audit"} <= seen
    await context.close()
