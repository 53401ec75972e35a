"""Tests the list of calls: filters by name and time, sorting, downloads and the live tail."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator

import httpx2
import pytest
from playwright.async_api import expect

from tests.support.console_site import TOKEN, ConsoleSite, Watched
from tests.support.constants import constants
from tests.support.http_client import http_client
from tollkeeper.console.context import _STREAMS_MAX


@pytest.fixture
async def operator(site: ConsoleSite) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(site.address) as client:
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        yield client


async def test_calls_are_found_by_names_and_times(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    tenant = site.judged.scripted.tenant
    entry = await site.judged.entry(await site.judged.chat())
    organization = f"organization={tenant.organization_id}"
    project = await site.services.projects.project_show(tenant.project_id)
    day = entry.started_at_ms // 86_400_000 * 86_400
    shown = f"/activity/{entry.request_id}"
    for query, found in (
        (f"{organization}&project={project.name}&key=app&sort=cost", True),
        (f"{organization}&project={tenant.project_id}", True),
        (f"{organization}&since={day}&until={day + 2 * 86_400}&range=", True),
        (f"{organization}&since=2020-01-01T00:00:00&until=2020-01-02T00:00&sort=tokens", False),
    ):
        page = await operator.get(f"/activity?{query}")
        assert page.status_code == 200, page.text
        assert (shown in page.text) is found, query
        if found:
            assert f'data-label="Project" class="name">{project.name}</td>' in page.text
            assert 'data-label="Key" class="name">app</td>' in page.text
    assert (await operator.get(f"/activity?{organization}&key=nothing")).status_code == 404
    assert (await operator.get("/activity?sort=colour")).status_code == 400


async def test_the_page_says_which_calls_are_sorted(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    organization = site.judged.scripted.tenant.organization_id
    for words in ("one", "one two three four"):
        await site.judged.entry(await site.judged.chat(words))
    path = f"/activity?organization={organization}&sort=duration"
    whole = (await operator.get(path)).text
    assert "All 2 matching calls, sorted by duration." in whole
    with constants({"console.pages.activity.PAGE_MAX": 1}):
        part = (await operator.get(path)).text
    assert "Only 1 matching calls are sorted by duration: at most 1 are read at once" in part


async def test_calls_are_downloaded_like_by_the_command(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    tenant = site.judged.scripted.tenant
    made = [await site.judged.entry(await site.judged.chat()) for _ in range(2)]
    path = f"/activity/export?organization={tenant.organization_id}"
    answer = await operator.get(path)
    assert answer.headers["content-disposition"] == 'attachment; filename="activity.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert {row["request_id"] for row in rows} == {str(entry.request_id) for entry in made}
    lines = (await operator.get(f"{path}&format=jsonl")).text.splitlines()
    assert [json.loads(line)["settlement"] for line in lines] == ["settled"] * 2
    assert (await operator.get(f"{path}&format=xml")).status_code == 400
    assert (await operator.get(f"{path}&since=1&until=9000000000")).status_code == 400


async def _next_data(lines: AsyncIterator[str]) -> str:
    async for line in lines:
        if line.startswith("data: "):
            return line.removeprefix("data: ")
    raise AssertionError("the tail ended")


async def test_a_tail_tells_of_new_calls_and_the_open_ones_are_limited(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    path = f"/activity/tail?organization={site.judged.scripted.tenant.organization_id}"
    async with http_client(site.address) as stranger:
        assert (await stranger.get(path)).status_code == 303
    async with asyncio.timeout(60), operator.stream("GET", path) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        assert await anext(lines) == "retry: 1000"
        made = await site.judged.entry(await site.judged.chat())
        assert await _next_data(lines) == str(made.request_id)
        others = [operator.stream("GET", path) for _ in range(_STREAMS_MAX - 1)]
        for other in others:
            assert (await other.__aenter__()).status_code == 200
        assert (await operator.get(path)).status_code == 503
        for other in others:
            await other.__aexit__(None, None, None)


@pytest.mark.slow
async def test_the_live_tail_in_a_browser(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await site.judged.entry(await site.judged.chat())
    await page.goto(f"{site.address}/activity?organization={tenant.organization_id}")
    # Without the live tail, the page would not show the call in time.
    await page.evaluate("document.querySelector('[data-refresh]').dataset.refreshEvery = 3600")
    button = page.get_by_role("button", name="Live tail")
    async with page.expect_request("**/activity/tail?*"):
        await button.press("Enter")
    await expect(button).to_have_attribute("aria-pressed", "true")
    later = await site.judged.entry(await site.judged.chat())
    rows = page.locator("#calls tbody tr")
    await expect(rows.first).to_contain_text(str(later.request_id)[-8:], timeout=30_000)
    await button.press("Enter")
    await expect(button).to_have_attribute("aria-pressed", "false")
