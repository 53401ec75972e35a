"""Tests the list of calls: filters by name and time, sorting, downloads and the live tail."""

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncIterator
from html import unescape
from urllib.parse import quote
from uuid import UUID

import httpx2
import pytest
from playwright.async_api import expect

from tests.support.activity_records import record_of, written
from tests.support.books import Books
from tests.support.console_site import TOKEN, ConsoleSite, Watched
from tests.support.constants import constants
from tests.support.http_client import http_client
from tollkeeper.console.context import _STREAMS_MAX
from tollkeeper.core.usage import Usage


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


async def test_a_policy_is_found_by_its_name(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    policy = await site.judged.publish("bomb")
    judged = await site.judged.entry(await site.judged.chat("a bomb"))
    # A policy of another organization has the same name.
    other = await site.for_next_test()
    await other.judged.publish("bomb")
    await other.judged.entry(await other.judged.chat("a bomb"))
    organization = f"organization={policy.organization_id}"
    for text in (policy.name.upper(), policy.id, policy.id[:12]):
        page = await operator.get(f"/activity?{organization}&policy={quote(text)}")
        assert _shown(page.text) == [judged.request_id], text
    for path in ("/activity", "/activity/export", "/activity/tail"):
        missing = await operator.get(f"{path}?{organization}&policy=unknown")
        assert (missing.status_code, "There is no policy unknown." in missing.text) == (404, True)
    ambiguous = await operator.get(f"/activity?policy={quote(policy.name)}")
    assert ambiguous.status_code == 409
    assert "fits more than one policy" in ambiguous.text


def _shown(page: str) -> list[UUID]:
    """Returns the request ids of the listed calls, in the order of the page."""
    return [UUID(found) for found in re.findall(r'<a href="/activity/([0-9a-f-]{36})">', page)]


async def _calls_to_sort(site: ConsoleSite) -> list[UUID]:
    """Records three calls. In each sort order, their order is different from the order by time."""
    tenant = site.judged.scripted.tenant
    [key] = await site.services.project_keys.project_key_list(tenant.project_id)
    books = Books(site.services, tenant.organization_id, tenant.project_id, key.id)
    now = site.services.clock()
    records = [
        record_of(
            books,
            started_at_ms=(now - age_s) * 1000,
            first_piece_us=first_byte * 1000,
            duration_us=duration * 1000,
            usage=Usage(tokens, 1, 0, 0),
            cost_picousd=cost,
            verdicts=(),
        )
        for age_s, first_byte, duration, tokens, cost in (
            (10, 20, 300, 1000, 2_000_000),
            (20, 30, 100, 3000, 1_000_000),
            (30, 10, 200, 2000, 3_000_000),
        )
    ]
    await written(site.services.activity, *records)
    return [UUID(record.request_id) for record in records]


# By sort order: the positions of the calls of `_calls_to_sort`, descending.
_DESCENDING = {
    "time": (0, 1, 2),
    "first_byte": (1, 0, 2),
    "duration": (0, 2, 1),
    "tokens": (1, 2, 0),
    "cost": (2, 0, 1),
}


async def test_headings_sort_descending_and_then_ascending(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    made = await _calls_to_sort(site)
    path = f"/activity?organization={site.judged.scripted.tenant.organization_id}"
    start = (await operator.get(path)).text
    headings = {
        "time": "Call, time (UTC)",
        "first_byte": "First byte",
        "duration": "Duration",
        "tokens": "Tokens in / out",
        "cost": "Cost",
    }
    for key, heading in headings.items():
        page, order = start, [made[position] for position in _DESCENDING[key]]
        if key == "time":
            # The newest calls come first already.
            assert _shown(page) == order
            assert _sorted_heading(page) == (heading, "descending")
        else:
            page = (await operator.get(_link(page, heading))).text
            assert _shown(page) == order, key
            assert _sorted_heading(page) == (heading, "descending")
        page = (await operator.get(_link(page, heading))).text
        assert _shown(page) == order[::-1], key
        assert _sorted_heading(page) == (heading, "ascending")
        page = (await operator.get(_link(page, heading))).text
        assert _shown(page) == order, key


def _link(page: str, heading: str) -> str:
    found = re.search(rf'<th scope="col"[^>]*><a href="([^"]*)">{re.escape(heading)}</a>', page)
    assert found is not None, heading
    return unescape(found[1])


def _sorted_heading(page: str) -> tuple[str, str]:
    [(order, heading)] = re.findall(r'aria-sort="(\w+)"><a [^>]*>([^<]*)</a>', page)
    return heading, order


async def test_the_page_says_which_calls_are_sorted(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    made = await _calls_to_sort(site)
    path = f"/activity?organization={site.judged.scripted.tenant.organization_id}&sort=duration"
    for sent in (path, f"{path}+"):
        whole = (await operator.get(sent)).text
        assert "Sorted by duration, descending: all 3 matching calls." in whole
    with constants({"console.pages.activity.PAGE_MAX": 1}):
        part = (await operator.get(path)).text
    assert "Sorted by duration, descending: the first 1 of all 3 matching calls." in part
    with constants({"reports.traffic.service._READ_MAX": 2}):
        newest = (await operator.get(path)).text
        assert _shown(newest) == [made[0], made[1]]
        assert "Sorted by duration, descending: the newest 2 matching calls. The console" in newest
        link = re.search(r'rel="next" href="([^"]*)"', newest)
        assert link is not None
        older = (await operator.get(unescape(link[1]))).text
    assert _shown(older) == [made[2]]
    assert "Sorted by duration, descending: 1 older matching call. The console" in older


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
