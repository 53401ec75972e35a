"""Starts one console and one browser for all tests of this folder. Each test has its own tenant and page."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext

from tests.journeys.clients.environments import AXE_PROJECT, NotInstalled, node_environment
from tests.support.browser import NoBrowser, find_or_install, running_browser
from tests.support.capped_books import capped_books
from tests.support.console_site import ConsoleSite, Watched, console_site, sign_in, watched_page
from tests.support.databases import own_database
from tests.support.ledger_months_fixtures import old

__all__ = ["capped_books", "old"]


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Returns a separate database, because tests of this folder verify the whole ledger."""
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
        # This runs in a thread, because gateways of other tests use the same event loop.
        chromium = await asyncio.to_thread(find_or_install)
    except NoBrowser as exc:
        pytest.fail(str(exc), pytrace=False)
    async with running_browser(chromium) as running:
        yield running


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    made = await browser.new_context(viewport={"width": 1280, "height": 900})
    # The timeout is long, because the machine may be busy.
    made.set_default_timeout(60_000)
    yield made
    await made.close()


@pytest.fixture
async def watched(context: BrowserContext, site: ConsoleSite) -> AsyncIterator[Watched]:
    """Yields a page on which an operator is signed in. Every fault of the page fails the test."""
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
