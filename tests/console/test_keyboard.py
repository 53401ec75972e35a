"""Tests that every action of every page works by keyboard. The pages come from the table of permissions."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from playwright.async_api import FilePayload, Locator, Page, expect

from tests.console.keyboard_steps import MONTH_STEPS, STEPS, Step
from tests.support.console_pages import (
    ASKING_FORMS,
    fill_required,
    make_objects,
    open_details,
    page_addresses,
)
from tests.support.console_site import ConsoleSite, Watched, serving_console, sign_in
from tests.support.databases import own_database
from tests.support.ledger import make_tenant, running_process
from tests.support.ledger_months import OldBooks, this_month
from tollkeeper.console.app import PERMISSIONS
from tollkeeper.setup import running_services

pytestmark = pytest.mark.slow

# The pages of the list have at least this many dialogs.
_DIALOGS_MIN = 11
_TABS_MAX = 400
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
# Marks one form of each kind that asks for a confirmation. The ids in their addresses differ.
_MARK_KINDS = """(asking) => {
  const kinds = new Set();
  for (const form of document.querySelectorAll(asking)) {
    const kind = form.getAttribute("action").replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, "");
    if (!kinds.has(kind)) form.dataset.kind = kind;
    kinds.add(kind);
  }
}"""
_IN_DIALOG = "document.activeElement.closest('dialog[open]') !== null"


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
    """Opens a confirmation dialog of each kind on the page with Enter, and closes it with Escape. Returns
    the number of opened dialogs."""
    await open_details(page)
    await page.evaluate(_MARK_KINDS, ASKING_FORMS)
    forms = page.locator("main form[data-kind]")
    for number in range(await forms.count()):
        await fill_required(forms.nth(number))
        button = forms.nth(number).locator("button").last
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
    return await forms.count()


async def _tab_to(page: Page, control: Locator) -> None:
    await control.evaluate("one => { one.dataset.wanted = '' }")
    for _ in range(_TABS_MAX):
        if await page.evaluate("'wanted' in document.activeElement.dataset"):
            break
        await page.keyboard.press("Tab")
    else:
        pytest.fail(f"Tab does not reach {await control.evaluate('one => one.outerHTML')}")
    await control.evaluate("one => { delete one.dataset.wanted }")


async def _enter(page: Page, control: Locator, value: str | FilePayload) -> None:
    """Fills in the focused control."""
    if not isinstance(value, str):
        async with page.expect_file_chooser() as chooser:
            # After this round trip, the page passes its file dialogs to the test. Without it, the key could
            # reach the page first.
            await page.evaluate("null")
            await page.keyboard.press("Space")
        await (await chooser.value).set_files(value)
        return
    match await control.evaluate("one => one.type"):
        case "checkbox" | "radio":
            await page.keyboard.press("Space")
        case "range":
            await page.keyboard.press("ArrowRight")
        case "select-one":
            await page.keyboard.type(value)
        case _:
            await page.keyboard.press("Control+A")
            await page.keyboard.type(value)


async def _do(page: Page, address: str, step: Step, ids: Mapping[str, str], key: str) -> None:
    """Opens the page, fills in and sends the form, and confirms the dialog, only by keyboard."""
    if step.page:
        await page.goto(address + step.page.format_map(ids))
    of_action = {**ids, "key": ids["admin_key"]} if "admin-keys" in step.action else ids
    action = step.action.format_map(of_action)
    found = step.form or f':is([action="{action}"], [action^="{action}?"])[method="post"]'
    form = page.locator(found).first
    closed = form.locator("xpath=ancestor::details[not(@open)]/summary")
    if await closed.count():
        await _tab_to(page, closed)
        await page.keyboard.press(key)
    for name, value in step.fields.items():
        control = form.locator(f'[name="{name}"]').first
        await _tab_to(page, control)
        text = value.format_map(ids) if isinstance(value, str) else value
        await _enter(page, control, text)
    asks = await form.get_attribute("data-ask") is not None
    await _tab_to(page, form.locator(step.button).last)
    async with page.expect_navigation():
        await page.keyboard.press(key)
        if asks:
            button = page.locator("dialog[open] button")
            await button.wait_for()
            await _tab_to(page, button)
            await page.keyboard.press(key)


async def _try(
    site: ConsoleSite, page: Page, steps: Iterable[Step], ids: Mapping[str, str]
) -> None:
    """Does the steps by keyboard, alternately with Enter and Space, and checks the effect of each."""
    for step, key in zip(steps, cycle(("Enter", "Space"))):
        if step.prepare is not None:
            await step.prepare(site, ids)
        newest = (await site.services.audit.audit_list(limit=1)).entries[0]
        await _do(page, site.address, step, ids, key)
        if step.shows:
            await page.locator(step.shows.format_map(ids)).first.wait_for()
        if step.writes:
            entries = (await site.services.audit.audit_list(limit=20)).entries
            written = {one.change.operation for one in entries if one.id > newest.id}
            assert step.writes in written, (step.action, await page.locator("main").inner_text())


@pytest.mark.smoke
async def test_a_page_works_by_keyboard(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await page.goto(f"{site.address}/organizations/{tenant.organization_id}")
    assert await _tab_through(page, "main") == []
    assert await _open_dialogs(page) > 0


@pytest.mark.smoke
async def test_credit_is_granted_by_keyboard(site: ConsoleSite, watched: Watched) -> None:
    organization = site.judged.scripted.tenant.organization_id
    ids = {"organization": str(organization)}
    [grant] = (one for one in STEPS["organizations"] if one.writes == "credit_grant")
    await _try(site, watched.page, [grant], ids)
    balance = await site.services.accounts.credit_show(organization)
    assert balance.granted_picousd == 11 * 10**12


@pytest.mark.smoke
def test_every_action_has_a_step() -> None:
    actions = {name.removeprefix("POST ") for name in PERMISSIONS.table if name.startswith("POST ")}
    steps = [step.action for group in (*STEPS.values(), MONTH_STEPS) for step in group]
    assert len(steps) == len(set(steps))
    assert set(steps) == actions


@pytest.mark.parametrize("group", STEPS)
async def test_every_action_works_by_keyboard(
    site: ConsoleSite, watched: Watched, group: str
) -> None:
    await _try(site, watched.page, STEPS[group], await make_objects(site))


async def test_a_month_is_closed_and_dropped_by_keyboard(
    site: ConsoleSite, watched: Watched, shared_conninfo: str
) -> None:
    conninfo = own_database(shared_conninfo, "keyboard_months")
    month = this_month().plus(-3)
    close, export, drop = MONTH_STEPS
    async with (
        running_process(conninfo) as process,
        running_services(site.settings, conninfo) as services,
        serving_console(site.settings, services) as address,
    ):
        books = OldBooks(process)
        await books.begin(month, month.next)
        await books.spend(await make_tenant(process.database, credit=1000), month, 10, 4)
        at = replace(site, address=address)
        await sign_in(watched.page, address)
        await _try(at, watched.page, [close], {"month": str(month)})
        assert await books.verify() == []
        digest = (await services.months.ledger_export(month, lambda _: None)).digest.hex()
        ids = {"month": str(month), "sha256": digest}
        await _try(at, watched.page, [export, drop], ids)
        assert next(one.state for one in await services.months.ledger_months()) == "dropped"


async def test_every_page_works_by_keyboard(site: ConsoleSite, watched: Watched) -> None:
    page, ids = watched.page, await make_objects(site)
    problems, dialogs = {}, 0
    for path in page_addresses(ids):
        await page.goto(site.address + path)
        wrong = await _tab_through(page, "main")
        if path.startswith("/models"):
            wrong += await _tab_through(page, "header")
        if wrong:
            problems[path] = wrong
        await page.reload()
        dialogs += await _open_dialogs(page)
    assert problems == {}
    assert dialogs >= _DIALOGS_MIN


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
