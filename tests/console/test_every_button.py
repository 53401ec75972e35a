"""Presses every button of a console that was started as users start it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import BrowserContext, Locator, Page, Response
from playwright.async_api import Error as PlaywrightError

from tests.support.console_pages import (
    BILL,
    BILL_COLUMNS,
    LABELLED,
    RULE,
    fill_required,
    lose_call,
    make_objects,
    open_details,
    page_addresses,
)
from tests.support.console_site import ConsoleSite, Watched, sign_in, watched_page
from tests.support.started_console import StartedConsole, started_console
from tollkeeper.console.app import PERMISSIONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# What the fields get that "1" does not suit.
_VALUES = {
    "rule": RULE,
    "columns": BILL_COLUMNS,
    "models": "example/*",
    "check": "age",
    "name": "Made by a test",
}
_FILES = {"/reconcile": BILL, "/policies/try": LABELLED, "/policies/try/save": LABELLED}
# The ends of the paths whose buttons take something away that other buttons need. They are pressed last, in
# this order: a policy is resumed before it is published, a lost call resolved before all are.
_LAST = (
    *("/publish", "/unsettled/all", "/revoke", "/admin-keys/x", "/drop"),
    *("/projects/x/archive", "/archive", "/people/end", "/sign-out"),
)
# Routes whose buttons no page of this history can show, with the reason.
_NOT_SHOWN = {
    "POST /months/{month}/exported": "no month is closed",
    "POST /months/{month}/drop": "no month is closed",
    "POST /policies/try/save": "the trial has too few labelled texts to fit a calibration",
    "POST /policies/{policy}/calibrate": "so no calibration is saved",
    "POST /organizations/{organization}/clear-overage": "no call cost more than its hold",
}
# Finds all buttons at once, because parts of some pages are refreshed.
_BUTTONS = """() => [...document.forms].flatMap((form, at) =>
  [...form.querySelectorAll("button")].map((button, number) => [button, number])
    .filter(([button]) => button.checkVisibility())
    .map(([button, number]) =>
      [at, number, form.method, form.getAttribute("action") || "", button.value]))"""
_PRESSED = "window.pressedByTest"
_WITHIN_S = 60


@dataclass(frozen=True)
class _Button:
    """A button on a page: the place of its form, and of the button in it."""

    page: str
    form: int
    button: int
    # What it does, without the ids of objects: buttons that do the same are pressed once.
    deed: str

    @property
    def order(self) -> int:
        return next((at for at, end in enumerate(_LAST) if f"{end} " in self.deed), -1)


@dataclass
class _Operator:
    console: StartedConsole
    watched: Watched
    pressed: set[str] = field(default_factory=set)
    # The permission table's name of each change that was sent, with the statuses of its answers.
    sent: dict[str, set[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def page(self) -> Page:
        return self.watched.page

    def note(self, answer: Response) -> None:
        request = answer.request
        if request.method == "POST":
            self.sent.setdefault(_route(urlsplit(answer.url).path), set()).add(answer.status)
        if answer.status >= 500:
            self.failures.append(f"{request.method} {answer.url}: {answer.status}")

    async def open(self, path: str) -> None:
        await self.page.goto(self.console.address + path)
        if urlsplit(self.page.url).path == "/sign-in":
            await sign_in(self.page, self.console.address, self.console.token)
            await self.page.goto(self.console.address + path)
        await open_details(self.page)

    async def buttons_of(self, path: str) -> list[_Button]:
        await self.open(path)
        return [
            _Button(path, form, button, f"{method} {_without_ids(action)} {value}")
            for form, button, method, action, value in await self.page.evaluate(_BUTTONS)
        ]

    async def press(self, button: _Button) -> None:
        """Presses a button of the page that is open."""
        self.pressed.add(button.deed)
        form = self.page.locator("form").nth(button.form)
        await _fill(form)
        await self.page.evaluate(f"{_PRESSED} = true")
        await form.locator("button").nth(button.button).click()
        # A dialog asks for a confirmation, or the next page comes.
        confirm = self.page.locator("dialog[open] button:not([data-cancel])")
        for _ in range(_WITHIN_S * 10):
            try:
                if await confirm.count():
                    await confirm.last.click()
                if not await self.page.evaluate(f"Boolean({_PRESSED})"):
                    break
            except PlaywrightError as exc:
                # The next page came meanwhile.
                if "navigation" not in exc.message:
                    raise
            await self.page.wait_for_timeout(100)
        else:
            self.failures.append(f"{button}: nothing happened")
        await self.page.wait_for_load_state()

    async def press_all(self, paths: Iterable[str], orders: range) -> None:
        """Presses all buttons of these orders, also those that appear because others were pressed."""
        paths, pressed_before = list(paths), -1
        while len(self.pressed) > pressed_before:
            pressed_before = len(self.pressed)
            for path in paths:
                # A button may change which other buttons its page has.
                while new := [
                    button
                    for button in await self.buttons_of(path)
                    if button.order in orders and button.deed not in self.pressed
                ]:
                    await self.press(new[0])


async def _fill(form: Locator) -> None:
    action = urlsplit(await form.get_attribute("action") or "").path
    for name, value in _VALUES.items():
        control = form.locator(f'[name="{name}"]:is(input, textarea):visible')
        if await control.count():
            await control.first.fill(value)
    files = form.locator('[type="file"]')
    if await files.count():
        await files.first.set_input_files(_FILES[action])
    await fill_required(form)


def _without_ids(address: str) -> str:
    return re.sub(r"/[^/.]*\d[^/.]*", "/x", urlsplit(address).path)


def _route(path: str) -> str:
    """Returns the name of a change in the table of permissions."""
    for name in PERMISSIONS.table:
        method, route = name.split(" ")
        # Of two routes that match, the one without a placeholder at this place is in the table first.
        if method == "POST" and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route), path):
            return name
    return f"POST {path}"


async def test_every_button_of_a_started_console_works(
    site: ConsoleSite, conninfo: str, tmp_path: Path, context: BrowserContext
) -> None:
    ids = await make_objects(site)
    await site.services.organizations.organization_grant_check(
        site.judged.scripted.tenant.organization_id, "adult"
    )
    # One call to settle, one to release, and one for the button that resolves all.
    for _ in range(2):
        await lose_call(site)
    paths = page_addresses(ids)
    with started_console(site, conninfo, tmp_path) as console:
        operator = _Operator(console, await watched_page(context))
        operator.page.on("response", operator.note)
        await sign_in(operator.page, console.address, console.token)
        for order in range(-1, len(_LAST)):
            await operator.press_all(paths, range(order, order + 1))
        log = console.log.read_text()
    assert not operator.failures, log
    assert "a page failed" not in log
    assert not [fault for fault in operator.watched.faults if fault.startswith("script")]
    changes = {name for name in PERMISSIONS.table if name.startswith("POST ")}
    missing = changes - operator.sent.keys()
    assert missing == _NOT_SHOWN.keys(), operator.sent
