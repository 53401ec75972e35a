"""One console and one browser for all tests here; each test has a tenant and a page of its own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext

from tests.journeys.clients.environments import AXE_PROJECT, NotInstalled, node_environment
from tests.support.browser import NoBrowser, find_or_install, running_browser
from tests.support.console_site import ConsoleSite, Watched, console_site, sign_in, watched_page
from tests.support.databases import own_database


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """The whole ledger is verified here: no other test may have touched it."""
    return own_database(shared_conninfo, "console")


@pytest.fixture(scope="package")
async def shared_site(data_dir: Path, conninfo: str) -> AsyncIterator[ConsoleSite]:
    async with console_site(data_dir, conninfo) as running:
        yield running


@pytest.fixture
async def site(shared_site: ConsoleSite) -> ConsoleSite:
    return await shared_site.for_next_test()


@pytest.fixture(scope="package")
async def browser() -> AsyncIterator[Browser]:
    try:
        # In a thread: gateways of other tests live on in this loop meanwhile.
        chromium = await asyncio.to_thread(find_or_install)
    except NoBrowser as exc:
        pytest.fail(str(exc), pytrace=False)
    async with running_browser(chromium) as running:
        yield running


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    made = await browser.new_context(viewport={"width": 1280, "height": 900})
    # A test waits for events, on a busy machine too.
    made.set_default_timeout(60_000)
    yield made
    await made.close()


@pytest.fixture
async def watched(context: BrowserContext, site: ConsoleSite) -> AsyncIterator[Watched]:
    """A page of somebody who is signed in. Whatever went wrong in it fails the test."""
    watched = await watched_page(context)
    await sign_in(watched.page, site.address)
    yield watched
    assert watched.faults == []


@pytest.fixture(scope="session")
async def axe_script() -> str:
    try:
        node = await asyncio.to_thread(node_environment, AXE_PROJECT, "axe")
    except NotInstalled as exc:
        pytest.fail(str(exc), pytrace=False)
    return (node.project / "node_modules" / "axe-core" / "axe.min.js").read_text()
