"""Tests signing in and out in a browser, with a restart of the console and with wrong tokens."""

import pytest
from playwright.async_api import BrowserContext, Cookie, expect

from tests.support.console_site import TOKEN, ConsoleSite, serving_console, sign_in, watched_page
from tollkeeper.console.sessions import COOKIE

pytestmark = pytest.mark.slow


async def _cookie(context: BrowserContext) -> Cookie:
    (found,) = [cookie for cookie in await context.cookies() if cookie.get("name") == COOKIE]
    return found


async def test_a_session_that_was_ended_stays_ended_after_a_restart(
    site: ConsoleSite, context: BrowserContext
) -> None:
    page = await context.new_page()
    async with serving_console(site.settings, site.services) as address:
        await sign_in(page, address)
        stolen = await _cookie(context)
        await page.get_by_role("button", name="Sign out", exact=True).click()
        await expect(page.get_by_label("Operator token")).to_be_visible()
        await context.clear_cookies()
        await sign_in(page, address)
        other = await _cookie(context)
    # The console restarts with the same database and secret. Both copied cookies are sent to it.
    async with serving_console(site.settings, site.services) as address:
        for cookie, pages in ((stolen, 0), (other, 1)):
            await context.clear_cookies()
            kept = {"name": COOKIE, "value": cookie["value"], "url": address}
            await context.add_cookies([kept])  # type: ignore[list-item]
            await page.goto(f"{address}/models")
            await expect(page.get_by_role("heading", name="Models")).to_have_count(pages)
            await expect(page.get_by_label("Operator token")).to_have_count(1 - pages)


async def test_wrong_tokens_do_not_lock_out_the_right_one(
    site: ConsoleSite, context: BrowserContext
) -> None:
    """Sends wrong tokens from the operator's own address, as another client of the same proxy would."""
    watched = await watched_page(context)
    page = watched.page
    async with serving_console(site.settings, site.services) as address:
        for _ in range(12):
            answer = await context.request.post(f"{address}/sign-in", form={"token": "wrong"})
        assert answer.status == 429
        await sign_in(page, address, TOKEN)
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert watched.faults == []
