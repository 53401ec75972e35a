"""Policies in the console, page by page, without a browser."""

import re
from collections.abc import AsyncIterator
from html import unescape

import httpx2
import pytest

from tests.support.console_site import TOKEN, ConsoleSite, serving_console

_TAG = re.compile(r"<[^>]+>")


@pytest.fixture
async def operator(site: ConsoleSite) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving_console(site.settings, site.services) as address,
        httpx2.AsyncClient(base_url=address, timeout=60) as client,
    ):
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        yield client


def words(html: str) -> str:
    """The text of a page."""
    return " ".join(unescape(_TAG.sub(" ", html)).split())


async def _page(operator: httpx2.AsyncClient, path: str) -> str:
    answer = await operator.get(path)
    assert answer.status_code == 200, answer.text
    return words(answer.text)


async def test_the_costs_page_shows_what_the_judge_used(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    organization = site.judged.scripted.tenant.organization_id
    assert "The judge" not in await _page(operator, f"/costs?organization={organization}")
    await site.judged.enforce(direction="request")
    await site.judged.chat("Hello")
    await site.services.judge_costs.write()
    shown = await _page(operator, f"/costs?organization={organization}")
    assert "judge the-judge 1 7 0 3 0 questions $0" in shown
