"""Tests that every action of every page works by keyboard. The pages come from the table of permissions."""

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.support.console_pages import page_paths
from tests.support.console_site import ConsoleSite, Watched
from tests.support.upstream import reset_before_headers
from tollkeeper.domain.caps import CapPeriod

pytestmark = pytest.mark.slow

# Numbers all visible controls of the part in the order of the document. Radio buttons with the same
# name are one stop; the arrow keys move within the stop.
_NUMBER_CONTROLS = """(part) => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  const controls = [...document.querySelector(part).querySelectorAll(
      "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
    .filter(one => one.checkVisibility({ visibilityProperty: true }) && !one.disabled);
  const radios = new Set();
  const stops = controls.filter(one => one.type !== "radio"
    || !radios.has(one.name) && radios.add(one.name));
  stops.forEach((one, number) => { one.dataset.stop = number; });
  return stops.map(one => one.outerHTML.slice(0, 160));
}"""
# Returns the number of the focused control, and whether its focus is visible.
_REACHED = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  const stop = one.dataset.stop ?? document.querySelector(
    `[type=radio][data-stop][name="${one.name}"]`)?.dataset.stop;
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return [stop === undefined ? -1 : Number(stop), seen || one.type === "range"];
}"""
# Returns elements that work only by mouse, or whose order differs from the document's order.
_MOUSE_ONLY = """() => [...document.querySelectorAll("*")]
  .filter(one => one.hasAttribute("onclick") || one.tabIndex > 0 || getComputedStyle(one).order !== "0"
    || one.getAttribute("role") === "button" && one.tagName !== "BUTTON")
  .map(one => one.outerHTML.slice(0, 160))"""
_IN_DIALOG = "document.activeElement.closest('dialog[open]') !== null"


async def _ids(site: ConsoleSite) -> dict[str, str]:
    """Creates objects of every kind, and returns their ids."""
    judged, tenant = site.judged, site.judged.scripted.tenant
    policy = await judged.publish("secret", direction="request")
    answered = await judged.chat("a secret")
    judged.model.play(reset_before_headers())
    lost = await judged.chat("Hello")
    await judged.entry(answered)
    await judged.entry(lost)
    await site.services.caps.cap_set(tenant.organization_id, 10**12, CapPeriod.MONTH)
    key = (await site.services.project_keys.project_key_list(tenant.project_id))[0]
    return {
        "organization": str(tenant.organization_id),
        "project": str(tenant.project_id),
        "key": str(key.id),
        "admin_key": str(key.id),
        "policy": policy.id,
        "reservation": lost.headers["x-request-id"],
        "request_id": answered.headers["x-request-id"],
        "backend": "scripted",
        "month": "2026-01",
    }


async def _tab_through(page: Page, part: str) -> list[Any]:
    """Presses Tab from the beginning of the part to its end. Returns the problems."""
    controls = await page.evaluate(_NUMBER_CONTROLS, part)
    await page.evaluate(
        """(part) => { const one = document.querySelector(part); one.tabIndex = -1; one.focus(); }""",
        part,
    )
    wrong: list[Any] = []
    expected = 0
    # A date field has several stops.
    for _ in range(8 * len(controls) + 8):
        if expected == len(controls):
            break
        await page.keyboard.press("Tab")
        reached, seen = await page.evaluate(_REACHED)
        if reached == expected - 1:
            continue
        if reached != expected:
            wrong.append(("not the next one", controls[expected], reached))
            if reached < expected:
                break
        if not seen:
            wrong.append(("no visible focus", controls[reached]))
        expected = reached + 1
    wrong += await page.evaluate(_MOUSE_ONLY)
    return wrong


async def _open_dialogs(page: Page) -> int:
    """Opens up to four confirmation dialogs that need no input with Enter, and closes them with Escape.
    Returns the number of opened dialogs."""
    forms = page.locator("main form[data-ask]:valid")
    opened = 0
    for number in range(min(await forms.count(), 4)):
        button = forms.nth(number).locator("button").last
        if not await button.is_visible():
            continue
        await button.focus()
        await page.keyboard.press("Enter")
        dialog = page.locator("dialog[open]")
        await dialog.wait_for()
        for _ in range(4):
            assert await page.evaluate(_IN_DIALOG), "the focus is in the dialog"
            await page.keyboard.press("Tab")
            # After the last control, Tab moves to the browser's own controls, not to the page.
            if await page.evaluate("document.activeElement === document.body"):
                await page.keyboard.press("Tab")
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(button).to_be_focused()
        opened += 1
    return opened


@pytest.mark.smoke
async def test_a_page_works_by_keyboard(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await page.goto(f"{site.address}/organizations/{tenant.organization_id}")
    assert await _tab_through(page, "main") == []
    assert await _open_dialogs(page) > 0


async def test_every_page_works_by_keyboard(site: ConsoleSite, watched: Watched) -> None:
    page, ids = watched.page, await _ids(site)
    problems, dialogs = {}, 0
    for path in page_paths(ids):
        await page.goto(f"{site.address}{path}?organization={ids['organization']}")
        wrong = await _tab_through(page, "main")
        if path == "/models":
            wrong += await _tab_through(page, "header")
        if wrong:
            problems[path] = wrong
        await page.reload()
        dialogs += await _open_dialogs(page)
    assert problems == {}
    assert dialogs >= 4


async def test_links_buttons_and_summaries_obey_keys(site: ConsoleSite, watched: Watched) -> None:
    page = watched.page
    await page.goto(f"{site.address}/activity")
    tail = page.get_by_role("button", name="Live tail")
    for pressed in ("true", "false"):
        await tail.focus()
        await page.keyboard.press("Space")
        await expect(tail).to_have_attribute("aria-pressed", pressed)
    await page.locator("summary", has_text="More filters").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Sort by")).to_be_visible()
    await page.locator("nav.links").get_by_role("link", name="Models").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Models")).to_be_visible()
