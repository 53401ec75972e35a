"""Tests that the page of a call makes no statement about facts that are unknown."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.support.console_site import ConsoleSite, Watched, confirm
from tests.support.judged_gateway import assert_denied
from tests.support.upstream import reset_before_headers
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.views import ActivityEntry

pytestmark = pytest.mark.slow

# Statements that a page may contain only if a record of the call supports them.
_CLAIMS = (
    "not called",
    "not reached",
    "othing was charged",
    "none were charged",
    "No usage",
    "No policy judged",
)


async def _facts(page: Page) -> dict[str, str]:
    """Returns the terms of the first list of facts with their values."""
    facts = page.get_by_role("region", name="Who and where").locator(".facts")
    terms = await facts.locator("dt").all_inner_texts()
    return dict(zip(terms, await facts.locator("dd").all_inner_texts(), strict=True))


async def _stages(page: Page) -> list[str]:
    rows = page.get_by_role("region", name="Times", exact=True).get_by_role("rowheader")
    return list(await rows.all_inner_texts())


async def _lost_call(site: ConsoleSite) -> ActivityEntry:
    """Makes a call whose backend resets the connection before it answers. Returns its record."""
    site.judged.model.play(reset_before_headers())
    entry = await site.judged.entry(await site.judged.chat())
    assert entry.settlement == "unsettled"
    return entry


async def test_without_a_record_only_the_ledger_is_known(
    site: ConsoleSite, watched: Watched
) -> None:
    page, entry = watched.page, await _lost_call(site)
    # This simulates a process that ended before it wrote the record.
    await site.judged.scripted.sql(
        "DELETE FROM activity WHERE organization_id = %s AND request_id = %s",
        entry.organization_id,
        entry.request_id,
    )
    await page.goto(f"{site.address}/activity/{entry.request_id}")
    content = await page.locator("main").inner_text()
    assert [claim for claim in _CLAIMS if claim in content] == []
    facts = await _facts(page)
    assert [facts[name] for name in ("Backend", "Replica", "Finish")] == ["unknown"] * 3
    verdicts = page.get_by_role("region", name="Verdicts", exact=True)
    await expect(verdicts).to_contain_text("Unknown: the call has no record.")
    usage = page.get_by_role("region", name="Usage", exact=True)
    await expect(usage).to_contain_text("Unknown")
    # The operator knows only the cost; the usage stays unknown.
    await page.get_by_label("Actual cost in USD").fill("0.0001")
    await page.get_by_role("button", name="Settle").click()
    await confirm(page, "Charge $0.0001")
    await expect(page.get_by_text("The call is settled: $0.0001 was charged.")).to_be_visible()
    content = await page.locator("main").inner_text()
    assert "$0.0001" in content
    assert re.search(r"Unsettled since [-0-9]+ [:0-9]+ UTC, until [-0-9]+ [:0-9]+ UTC: ", content)
    assert [claim for claim in _CLAIMS if claim in content] == []


async def test_the_usage_of_an_unsettled_call_is_unknown(
    site: ConsoleSite, watched: Watched
) -> None:
    page, entry = watched.page, await _lost_call(site)
    await page.goto(f"{site.address}/activity/{entry.request_id}")
    facts = await _facts(page)
    assert (facts["Backend"], facts["Replica"]) == ("scripted", "none answered")
    content = await page.locator("main").inner_text()
    # The record says that no policy applied, and that the backend was called.
    assert [claim for claim in _CLAIMS if claim in content] == ["No policy judged"]
    assert "Backend" in await _stages(page)
    await page.get_by_role("button", name="Release: it cost nothing").click()
    assert entry.hold_picousd is not None
    hold = usd_from_picousd(entry.hold_picousd)
    await confirm(page, f"Release ${hold}")
    await expect(
        page.get_by_text(f"The call is released: ${hold} of its hold was given back.")
    ).to_be_visible()
    tokens = page.locator(".tile", has_text="Tokens")
    await expect(tokens).to_contain_text("none were charged")


async def test_a_denied_call_has_no_backend(site: ConsoleSite, watched: Watched) -> None:
    page = watched.page
    policy = await site.judged.enforce("bomb", direction="request")
    called = len(site.judged.model.requests)
    denied = await site.judged.chat("a bomb")
    assert_denied(denied, policy, "request")
    assert len(site.judged.model.requests) == called
    entry = await site.judged.entry(denied)
    assert (entry.backend, entry.replica, entry.settlement) == (None, None, "released")
    await page.goto(f"{site.address}/activity/{entry.request_id}")
    facts = await _facts(page)
    assert (facts["Backend"], facts["Replica"]) == ("not called", "\N{EN DASH}")
    assert await _stages(page) == [
        "Admission until the hold",
        "Judged: request",
        "Resolved in the ledger",
    ]


async def test_a_denied_call_shows_what_its_verdicts_cost(
    site: ConsoleSite, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = watched.page
    ledger = site.judged.scripted.gateway.services.ledger
    monkeypatch.setattr(ledger._holds._policies, "_verdict_picousd", 1_500_000_000)
    await site.judged.enforce("bomb")
    entry = await site.judged.entry(await site.judged.chat("a bomb"))
    assert (entry.settlement, entry.cost_picousd) == ("settled", 1_500_000_000)
    await page.goto(f"{site.address}/activity/{entry.request_id}")
    admission = page.get_by_role("region", name="Admission", exact=True).first
    await expect(admission.get_by_role("row", name="Verdicts, at most")).to_contain_text("0.003")
    await expect(admission).not_to_contain_text("Other bounds")
    settlement = page.get_by_role("region", name="Settlement", exact=True)
    await expect(settlement.get_by_role("row", name="verdict")).to_contain_text("0.0015")
    tokens = page.locator(".tile", has_text="Tokens")
    await expect(tokens).to_contain_text("none were charged")
