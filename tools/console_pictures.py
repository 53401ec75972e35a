"""Takes pictures of every page of the console: wide and narrow, light and dark, with an invented history.

`python -m tools.console_pictures FOLDER` writes them to a folder. With `--documents`, it only replaces the
pictures in docs/.
"""

import argparse
import asyncio
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.async_api import Browser, Page
from tests.support.browser import find_or_install, running_browser
from tests.support.console_pages import View, form_views, general_paths, open_view, page_paths
from tests.support.console_site import (
    ConsoleSite,
    charts_are_drawn,
    console_site,
    make_session,
    serving_console,
    sign_in,
)
from tests.support.databases import migrate_with_template, own_database
from tests.support.identity_provider import with_provider
from tests.support.scripted_gateway import scripted_settings
from tests.support.upstream import answer, chat, completion, reset_before_headers

from tollkeeper.console.context import Finding, MachineChecks, ProbedReplica
from tollkeeper.console.sessions import TOKEN_HOLDER
from tollkeeper.reports.alerts.rule import AlertKind, StandingAlert
from tollkeeper.setup import running_services
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.settings import Settings
from tollkeeper.tenants.people import Person, Role
from tools.console_history import History, write_history

Scheme = Literal["light", "dark"]
_WIDTHS = (1280, 390)
_SCHEMES: tuple[Scheme, ...] = ("light", "dark")
_IMAGES = Path(__file__).parents[1] / "docs" / "images"
_MORE_MODELS = (
    {"id": "example/large", "pricing": {"prompt": "0.000002", "completion": "0.000008"}},
    {"id": "example/vision", "pricing": {"prompt": "0.0000005", "completion": "0.0000015"}},
)
_PATIENCE_MS = 60_000
_DOCUMENTS: tuple[tuple[str, str, Scheme], ...] = (
    ("overview-7d", "console-overview.png", "light"),
    ("_policies_policy", "console-policy.png", "light"),
    ("_activity_request_id", "console-call.png", "dark"),
)


@dataclass(frozen=True)
class Shot:
    """Describes one picture: the page, the person who is signed in, and the actions before the picture."""

    name: str
    path: str
    person: Person | None = TOKEN_HOLDER
    # The name of a button to press on the page.
    press: str = ""
    # Labels of fields and their values, which are filled in before the button is pressed.
    fill: tuple[tuple[str, str], ...] = ()
    # The CSS selector of an element that appears after the button was pressed.
    shows: str = "dialog[open]"
    media: Literal["screen", "print"] = "screen"
    # The console to use: with the history, without content, or with an identity provider.
    at: Literal["full", "empty", "provider"] = "full"
    # A form to send on the page, instead of `press`.
    view: View | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--documents", action="store_true")
    parser.add_argument("--only", default="", help="a regular expression for the names of pictures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text, EmbeddedPostgres(Path(text)) as server:
        migrate_with_template(server.conninfo)
        asyncio.run(_run(Path(text), server.conninfo, options))


async def _run(data_dir: Path, conninfo: str, options: argparse.Namespace) -> None:
    invented = scripted_settings(data_dir, "http://127.0.0.1:9/v1", more_models=_MORE_MODELS)
    empty = own_database(conninfo, "empty")
    history = await write_history(invented, conninfo)
    async with (
        console_site(data_dir, conninfo, more_models=_MORE_MODELS) as site,
        running_browser(find_or_install()) as browser,
        _consoles(site, empty) as addresses,
    ):
        shots = await _shots(site, history)
        if options.documents:
            await _take_documents(browser, site, addresses, shots)
            return
        options.folder.mkdir(parents=True, exist_ok=True)
        wanted = [shot for shot in shots if re.search(options.only, shot.name)]
        for width, scheme in product(_WIDTHS, _SCHEMES):
            async with _browsers(browser, site, addresses, width, scheme) as open_page:
                for shot in wanted:
                    file = options.folder / f"{shot.name}-{width}-{scheme}.png"
                    await _take(await open_page(shot), addresses[shot.at], shot, file)


@asynccontextmanager
async def _consoles(site: ConsoleSite, empty: str) -> AsyncIterator[dict[str, str]]:
    """Serves three consoles: with the history, without any content, and with an identity provider."""
    # No provider listens at this address.
    provided = with_provider(site.settings, "http://localhost:9", client_secret="")
    async with (
        running_services(site.settings, empty) as no_services,
        serving_console(site.settings, site.services, machine=_machine(site.settings)) as full,
        serving_console(site.settings, no_services) as without,
        serving_console(provided, site.services) as provider,
    ):
        yield {"full": full, "empty": without, "provider": provider}


def _machine(settings: Settings) -> MachineChecks:
    async def replicas() -> list[ProbedReplica]:
        return [
            ProbedReplica(backend.name, url, backend.name != "judge", "connection refused")
            for backend in settings.backends
            for url in backend.urls
        ]

    async def alerts() -> list[StandingAlert]:
        detail = "the backend scripted has no healthy replica"
        return [
            StandingAlert(
                AlertKind.NOT_READY, 100, {"gateway": "gateway-1"}, detail, int(time.time()) - 3600
            )
        ]

    async def doctor() -> list[Finding]:
        return [
            Finding("database", "ok", "durable, schema 0036"),
            Finding("judge", "warning", "answers within 2.1 s; its deadline is 3 s"),
            Finding("backend scripted", "bad", "connection refused: http://10.0.0.5:8000/v1"),
        ]

    return MachineChecks(replicas, alerts, doctor)


async def _shots(site: ConsoleSite, history: History) -> list[Shot]:
    """Makes a few calls, and returns the list of all pictures."""
    first = history.tenants[0]
    tenant = first.tenant
    judged = replace(site.judged, scripted=replace(site.judged.scripted, tenant=tenant))
    enforced = await judged.enforce("password", direction="request")
    judged.model.play(answer(completion("A gateway stands between programs and models.")))
    answered = await judged.chat("What is a gateway?")
    await judged.chat("my password is hunter2")
    judged.model.play(reset_before_headers())
    lost = await judged.chat("Hello")
    # The playground asks for a stream.
    judged.model.play(chat())
    await judged.entry(lost)
    await judged.entry(answered)
    await site.services.alerts.check()
    await site.services.reconciliation.ledger_verify()
    vera = Person("v.ruiz", "Vera Ruiz", Role.VIEWER)
    olga = Person("o.lind", "Olga Lind", Role.ORGANIZATION, tenant.organization_id)
    for person in (vera, olga, Person("t.ek", "Tom Ek", Role.OPERATOR)):
        await make_session(site, person)
    admin = await site.services.admin_keys.admin_key_list(
        tenant.organization_id, after=None, limit=1
    )
    ids = {
        "organization": str(tenant.organization_id),
        "project": str(tenant.project_id),
        "key": str(first.key_id),
        "admin_key": str(admin.keys[0].id),
        "policy": history.policies[0].id,
        "reservation": lost.headers["x-request-id"],
        "request_id": answered.headers["x-request-id"],
        "backend": "scripted",
        "month": "2026-10",
    }
    of = f"organization={tenant.organization_id}"
    pages = page_paths(ids)
    shots = [Shot(_named(path, ids), f"{path}?{of}") for path in pages]
    shots += [
        Shot(f"own{_named(path, ids)}", path, olga) for path in page_paths(ids, Role.ORGANIZATION)
    ]
    shots += [Shot(f"viewer{_named(path, ids)}", path, vera) for path in pages if path == "/"]
    shots += [Shot(f"empty{_named(path, ids)}", path, at="empty") for path in general_paths()]
    shots += [Shot(view.name, view.path, view=view) for view in form_views(ids)]
    return shots + _further_shots(ids, enforced.id, history.policies[1].id, vera)


def _further_shots(ids: dict[str, str], enforced: str, draft: str, vera: Person) -> list[Shot]:
    """Returns the pictures of dialogs, errors, the sign-in and other views of the same pages."""
    of = f"organization={ids['organization']}"
    organization, lost = f"/organizations/{ids['organization']}", ids["reservation"]
    return [
        Shot("overview-7d", "/?range=7d"),
        Shot("activity-unsettled", f"/activity/{lost}"),
        Shot("activity-sorted", "/activity?range=30d&sort=cost"),
        Shot("activity-no-match", "/activity?model=example/chat&status=403&cost=5"),
        Shot("activity-wrong", "/activity?cost=much"),
        Shot("costs-by-key", f"/costs?{of}&by=key&range=30d"),
        Shot("policy-enforcing", f"/policies/{enforced}"),
        Shot("policy-draft", f"/policies/{draft}"),
        Shot("statement-last", f"{organization}/statement?month=2026-10"),
        Shot("statement-print", f"{organization}/statement", media="print"),
        Shot("no-such-page", "/no-such-page"),
        Shot("no-such-call", "/activity/6f3bae30-0000-7000-8000-000000000000"),
        Shot("forbidden", "/people", vera),
        Shot("sign-in", "/sign-in", None),
        Shot(
            *("sign-in-wrong", "/sign-in", None, "Sign in", (("Operator token", "wrong"),)),
            shows=".notice.bad",
        ),
        Shot("sign-in-provider", "/sign-in", None, at="provider"),
        Shot("sign-in-provider-down", "/sign-in/provider", None, at="provider"),
        Shot("start-dialog", "/start", press="Create", fill=(("Organization", "Hooli"),)),
        Shot("backend-try-dialog", "/backends/scripted/try", press="Make real"),
        Shot("people-dialog", "/people", press="End all sessions"),
    ]


def _named(path: str, ids: dict[str, str]) -> str:
    for name, value in ids.items():
        path = path.replace(value, name)
    return path.replace("/", "_") if path != "/" else "_overview"


OpenPage = Callable[[Shot], Awaitable[Page]]


@asynccontextmanager
async def _browsers(
    browser: Browser, site: ConsoleSite, addresses: dict[str, str], width: int, scheme: Scheme
) -> AsyncIterator[OpenPage]:
    """Yields a function that returns a browser page for a picture. Pictures of the same person and console
    share a browser page, so that the browser loads scripts once."""
    pages: dict[tuple[Person | None, str], Page] = {}

    async def open_page(shot: Shot) -> Page:
        who = (shot.person, shot.at)
        if who not in pages:
            context = await browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme
            )
            context.set_default_timeout(_PATIENCE_MS)
            pages[who] = await context.new_page()
            if shot.at == "empty":
                await sign_in(pages[who], addresses["empty"])
            elif shot.person is not None:
                made = await make_session(site, shot.person)
                cookies = [(name, value) for name, value in made.items()]
                await context.add_cookies(
                    [
                        {"name": name, "value": value, "url": addresses[shot.at]}
                        for name, value in cookies
                    ]
                )
        return pages[who]

    try:
        yield open_page
    finally:
        for page in pages.values():
            await page.context.close()


async def _take(page: Page, address: str, shot: Shot, file: Path) -> None:
    await page.emulate_media(media=shot.media)
    if shot.view is None:
        await page.goto(address + shot.path)
    else:
        await open_view(page, address, shot.view)
    for label, text in shot.fill:
        await page.get_by_label(label).first.fill(text)
    if shot.press:
        await page.get_by_role("button", name=shot.press).first.click()
        await page.wait_for_load_state("networkidle")
        await page.locator(shot.shows).first.wait_for()
    await charts_are_drawn(page)
    has_dialog = await page.locator("dialog[open]").count() > 0
    await page.screenshot(path=file, full_page=not has_dialog)


async def _take_documents(
    browser: Browser, site: ConsoleSite, addresses: dict[str, str], shots: list[Shot]
) -> None:
    """Takes the pictures in docs/, which show the top of three pages."""
    by_name = {shot.name: shot for shot in shots}
    for name, file, scheme in _DOCUMENTS:
        shot = by_name[name]
        async with _browsers(browser, site, addresses, 1360, scheme) as open_page:
            page = await open_page(shot)
            await page.set_viewport_size({"width": 1360, "height": 900})
            await page.goto(addresses["full"] + shot.path)
            await charts_are_drawn(page)
            await page.screenshot(path=_IMAGES / file)


if __name__ == "__main__":
    main()
