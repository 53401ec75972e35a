"""Runs the console for a browser, in front of a gateway with a scripted model and judge."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
from playwright.async_api import BrowserContext, Page

from tests.support.gateway import running_gateway
from tests.support.judged_gateway import JudgedGateway, ScriptedJudge
from tests.support.scripted_gateway import ScriptedGateway, eventually, scripted_settings
from tests.support.upstream import Upstream, chat
from tollkeeper.console.context import Finding, MachineChecks, ProbedReplica
from tollkeeper.console.server import CONNECTIONS_MAX, ConsoleServer
from tollkeeper.console.sessions import COOKIE, Sessions, token_digest
from tollkeeper.console.start import create_console
from tollkeeper.console.stored_sessions import ConsoleSessions
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.http.listeners import address_of, bind
from tollkeeper.reports.alerts.rule import StandingAlert
from tollkeeper.setup import master_secret
from tollkeeper.setup.services import Services
from tollkeeper.setup.settings import Settings
from tollkeeper.tenants.people import Person

TOKEN = "tko_for-tests"


@dataclass(frozen=True)
class ConsoleSite:
    address: str
    settings: Settings
    # The gateway, whose services the console uses too.
    judged: JudgedGateway

    @property
    def services(self) -> Services:
        return self.judged.scripted.gateway.services

    async def for_next_test(self) -> "ConsoleSite":
        """Returns the same site with a new tenant."""
        return replace(self, judged=await self.judged.for_next_test())


@dataclass
class Watched:
    """Contains a page and the errors that occurred in it."""

    page: Page
    faults: list[str] = field(default_factory=list)


@asynccontextmanager
async def console_site(data_dir: Path, conninfo: str, **changes: Any) -> AsyncIterator[ConsoleSite]:
    async with Upstream(chat()) as model, ScriptedJudge() as judge:
        settings = scripted_settings(
            data_dir,
            model.url,
            backends=[
                {"name": "scripted", "kind": "openai", "urls": [model.url]},
                {"name": "judge", "kind": "openai", "urls": [judge.url], "retries": 0},
            ],
            judge={"backend": "judge", "model": "the-judge", "deadline_s": 30},
            **changes,
        )
        async with running_gateway(settings, conninfo) as gateway:
            tenant = await gateway.make_tenant()
            scripted = ScriptedGateway(gateway, model, tenant, probe_tenant=tenant)
            await scripted.grant(10**13)
            # The playground of the console calls the gateway at this address.
            url = gateway.client.base_url
            server = settings.server.model_copy(update={"host": url.host, "port": url.port})
            settings = settings.model_copy(update={"server": server})
            async with serving_console(settings, gateway.services) as address:
                yield ConsoleSite(address, settings, JudgedGateway(scripted, judge))


async def no_replicas() -> list[ProbedReplica]:
    return []


async def _no_alerts() -> list[StandingAlert]:
    return []


async def all_well() -> list[Finding]:
    return [Finding("database", "ok", "durable"), Finding("judge", "warning", "slow")]


@asynccontextmanager
async def serving_console(
    settings: Settings,
    services: Services,
    token: str = TOKEN,
    machine: MachineChecks | None = None,
    *,
    port: int = 0,
    connections_max: int = CONNECTIONS_MAX,
) -> AsyncIterator[str]:
    """Serves the console in this event loop and yields its URL. Port 0 means a free port."""

    async def ask_replicas() -> list[ProbedReplica]:
        return [
            ProbedReplica(backend.name, url, True, "accepts connections")
            for backend in settings.backends
            for url in backend.urls
        ]

    app = create_console(
        settings,
        services,
        token_digest(token),
        config=None,
        machine=machine or MachineChecks(ask_replicas, _no_alerts, all_well),
    )
    listener = bind("127.0.0.1", port, setting="test")
    async with _serving(ConsoleServer(app, settings, connections_max), listener):
        scheme = "https" if settings.console.tls_files else "http"
        yield f"{scheme}://{address_of(listener)}"


async def make_session(site: ConsoleSite, person: Person) -> dict[str, str]:
    """Returns the cookies of a signed-in person, without an identity provider."""
    sessions = Sessions(
        Vault(master_secret(site.settings)),
        ConsoleSessions(site.services.database, site.services.clock),
        token_sha256=token_digest(TOKEN),
        sign_in=b"",
    )
    return {COOKIE: await sessions.begin(person, sessions.token_credential, None)}


@asynccontextmanager
async def _serving(server: ConsoleServer, listener: socket.socket) -> AsyncIterator[None]:
    server.config.timeout_graceful_shutdown = 1
    # The public `serve` would replace the signal handlers of the test run.
    task = asyncio.create_task(server._serve([listener]))
    await eventually(lambda: server.started)
    try:
        yield
    finally:
        # Accepts no connection while the server closes, because asyncio would lose this connection.
        asyncio.get_running_loop().remove_reader(listener.fileno())
        await asyncio.sleep(0)
        server.should_exit = True
        await task


async def watched_page(context: BrowserContext) -> Watched:
    """Opens a page that records script errors, violations of the content policy and failed loads."""
    watched = Watched(await context.new_page())
    page = watched.page

    def note_message(kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            watched.faults.append(f"{kind}: {text}")

    def note_failure(url: str, reason: str | None) -> None:
        # The browser aborts unfinished loads when it leaves a page.
        if reason != "net::ERR_ABORTED":
            watched.faults.append(f"not loaded: {url}: {reason}")

    page.on("console", lambda message: note_message(message.type, message.text))
    page.on("pageerror", lambda error: watched.faults.append(f"script: {error}"))
    page.on("requestfailed", lambda request: note_failure(request.url, request.failure))
    return watched


async def form_token(client: httpx2.AsyncClient) -> str:
    """Returns the token that the forms of this session contain."""
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', (await client.get("/models")).text)
    assert found is not None
    return found[1]


async def form_fields(client: httpx2.AsyncClient, once: str) -> dict[str, str]:
    """Returns the hidden fields that a form of this session contains."""
    return {"form_token": await form_token(client), "once": once}


async def confirm(page: Page, button: str) -> None:
    """Presses the button of the confirmation dialog."""
    await page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()


async def charts_are_drawn(page: Page) -> None:
    """Waits until the page has drawn every chart."""
    await page.wait_for_function(
        "[...document.querySelectorAll('figure.chart')].every(one => one.dataset.drawn)"
    )


async def sign_in(page: Page, address: str, token: str = TOKEN) -> None:
    await page.goto(f"{address}/sign-in")
    await page.get_by_label("Operator token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(f"{address}/")
