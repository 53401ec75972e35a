"""Tests every page: no script errors, no violations of the content security policy, no serious accessibility
problems, and no page that is wider than its screen."""

import json
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

import pytest
from playwright.async_api import Browser, Page

from tests.support import stripe_events as stripe
from tests.support.console_site import TOKEN, ConsoleSite, charts_are_drawn, sign_in, watched_page
from tests.support.http_client import http_client
from tests.support.upstream import reset_before_headers
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.services.ledger.stripe_events import read_event

pytestmark = pytest.mark.slow

Scheme = Literal["light", "dark"]
_PATIENCE_MS = 20_000


@dataclass(frozen=True)
class Addresses:
    """Contains the paths of all pages, for a tenant that has objects of every kind."""

    paths: tuple[str, ...]


async def _addresses(site: ConsoleSite) -> Addresses:
    judged, tenant = site.judged, site.judged.scripted.tenant
    policy = await judged.publish("secret", direction="request")
    answered = await judged.chat("a secret")
    judged.model.play(reset_before_headers())
    lost = await judged.chat("Hello")
    assert (await judged.entry(answered)).verdicts
    assert (await judged.entry(lost)).settlement == "unsettled"
    await site.services.caps.cap_set(tenant.organization_id, 10**12, CapPeriod.MONTH)
    payment = stripe.new_payment()
    for body in (stripe.succeeded(payment, 5), stripe.succeeded(payment, 5, "W" * 80)):
        await site.services.payments.payment_receive(read_event(body))
    await _long_names(site)
    organization = f"organization={tenant.organization_id}"
    return Addresses(
        (
            "/",
            "/activity",
            f"/activity?{organization}&status=2xx&policy={policy.id}&matched=1",
            f"/activity?{organization}&sort=cost-ascending",
            f"/activity/{answered.headers['x-request-id']}",
            f"/activity/{lost.headers['x-request-id']}",
            *(f"/costs?{organization}&by={by}" for by in ("model", "project", "key", "line_item")),
            "/unsettled",
            "/organizations",
            f"/organizations/{tenant.organization_id}",
            f"/organizations/{tenant.organization_id}/statement",
            f"/projects?{organization}",
            f"/projects/{tenant.project_id}",
            f"/keys?{organization}",
            f"/policies?{organization}",
            f"/policies/{policy.id}",
            "/policies/try",
            "/models",
            "/backends",
            "/settings",
            "/audit",
            "/people",
            "/alerts",
            "/start",
            f"/playground?{organization}",
            "/costs/all",
            f"/budgets?{organization}",
            f"/payments?payment={payment}",
            "/months",
            "/reconcile",
            "/doctor",
            "/backends/scripted/try",
            "/no-such-page",
        )
    )


async def _long_names(site: ConsoleSite) -> None:
    """Creates objects with a very long name that cannot be broken. It must fit on every page."""
    name = "W" * 224 + uuid4().hex.upper()
    services, tenant = site.services, site.judged.scripted.tenant
    project = await services.projects.project_create(tenant.organization_id, name)
    await services.project_keys.project_key_create_by_operator(project.id, name, None, None)
    await services.organizations.organization_create(name)


async def _serious(page: Page, axe: str) -> list[str]:
    # The debugger runs the checker, because the content security policy does not apply to it.
    await page.evaluate(axe)
    found: dict[str, Any] = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {json.dumps([node['html'] for node in violation['nodes'][:3]])}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
    ]


@pytest.mark.smoke
async def test_every_page_answers(site: ConsoleSite) -> None:
    paths = (await _addresses(site)).paths
    async with http_client(site.address) as client:
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        found = {path: (await client.get(path)).status_code for path in paths}
    assert found == {path: 404 if path == "/no-such-page" else 200 for path in paths}


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
async def test_every_page(
    site: ConsoleSite, browser: Browser, axe_script: str, scheme: Scheme, width: int
) -> None:
    addresses = await _addresses(site)
    context = await browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme
    )
    context.set_default_timeout(_PATIENCE_MS)
    watched = await watched_page(context)
    page = watched.page
    await sign_in(page, site.address)
    problems: dict[str, object] = {}
    for path in addresses.paths:
        watched.faults.clear()
        answer = await page.goto(site.address + path)
        assert answer is not None
        await charts_are_drawn(page)
        status, expected = answer.status, 404 if path == "/no-such-page" else 200
        # If a page is not found, the browser reports this in its console.
        faults = [] if status == 404 else list(watched.faults)
        wider = await page.evaluate("document.documentElement.scrollWidth") - width
        serious = await _serious(page, axe_script)
        if status != expected or faults or wider > 0 or serious:
            problems[path] = (status, faults, wider, serious)
    await context.close()
    assert problems == {}


async def test_sign_in_page_is_accessible(
    site: ConsoleSite, browser: Browser, axe_script: str
) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{site.address}/sign-in")
    assert await _serious(page, axe_script) == []
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
    await page.get_by_role("heading", name="Grant $2.5?").wait_for()
    assert (
        await site.services.billing.credit_show(tenant.organization_id)
    ).granted_picousd == 10**13
    await page.get_by_role("button", name="Grant $2.5").click()
    await page.get_by_text("$2.5 was granted.").wait_for()
    balance = await site.services.billing.credit_show(tenant.organization_id)
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
