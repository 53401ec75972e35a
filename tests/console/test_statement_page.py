"""Tests that the console's statement has the ledger's numbers as a page, in print and as a CSV file."""

import csv
import io
from decimal import Decimal
from uuid import uuid4

import pytest

from tests.support import stripe_events as stripe
from tests.support.console_site import TOKEN, ConsoleSite, Watched
from tests.support.http_client import http_client
from tests.support.upstream import reset_before_headers
from tollkeeper.console.amounts import exact_usd
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.money.payments.stripe_events import read_event


async def _busy_month(site: ConsoleSite) -> str:
    """Makes two calls (one stays unsettled), a payment and a refund. Returns the statement's path."""
    judged, organization = site.judged, site.judged.scripted.tenant.organization_id
    await judged.chat("Hello")
    judged.model.play(reset_before_headers())
    await judged.chat("Hello")
    payment = stripe.new_payment()
    for body in (
        stripe.succeeded(payment, 2500, organization),
        stripe.charge_refunded(payment, 500),
    ):
        await site.services.payments.payment_receive(read_event(body))
    return f"/organizations/{organization}/statement"


async def test_page_and_file_have_the_numbers_of_the_ledger(site: ConsoleSite) -> None:
    path = await _busy_month(site)
    organization = site.judged.scripted.tenant.organization_id
    balance = await site.services.accounts.credit_show(organization)
    closing_picousd = balance.granted_picousd - balance.settled_picousd
    closing = usd_from_picousd(closing_picousd)
    async with http_client(site.address) as client:
        await client.post("/sign-in", data={"token": TOKEN})
        page = (await client.get(path)).text
        file = await client.get(f"{path}.csv")
        for month, status in (("2026-13", 400), ("9999-01", 400), ("2020-01", 200)):
            assert (await client.get(path, params={"month": month})).status_code == status
        other = await site.services.organizations.organization_create(f"Other {uuid4()}")
        assert "None." in (await client.get(path.replace(str(organization), str(other.id)))).text
    assert f'id="closing">{exact_usd(closing_picousd)}<' in page
    assert "Calls of this month that are not settled: 1." in page
    assert file.headers["content-disposition"].startswith('attachment; filename="statement-2')
    rows = list(csv.DictReader(io.StringIO(file.text)))
    entries = [row["entry"] for row in rows]
    assert entries == [
        *("opening balance", "grant", "payment", "refund", "charge"),
        *("closing balance", "unsettled"),
    ]
    amounts = [Decimal(row["amount_usd"]) for row in rows]
    assert sum(amounts[:-2]) == amounts[-2] == Decimal(closing)


@pytest.mark.slow
async def test_paper_has_the_statement_and_nothing_else(
    site: ConsoleSite, watched: Watched
) -> None:
    path = await _busy_month(site)
    await watched.page.goto(site.address + path)
    await watched.page.emulate_media(media="print", color_scheme="dark")
    assert not await watched.page.locator(".side").is_visible()
    assert not await watched.page.get_by_role("link", name="Download CSV").is_visible()
    for name in ("#opening", "#closing", "#grants", "#charges", "#unsettled"):
        assert await watched.page.locator(name).is_visible(), name
    background = await watched.page.locator("#unsettled").evaluate(
        "notice => getComputedStyle(notice).backgroundColor"
    )
    assert background == "rgba(0, 0, 0, 0)"


async def test_an_organization_shows_its_latest_grants(site: ConsoleSite) -> None:
    await _busy_month(site)
    organization = site.judged.scripted.tenant.organization_id
    async with http_client(site.address) as client:
        await client.post("/sign-in", data={"token": TOKEN})
        page = (await client.get(f"/organizations/{organization}")).text
    table = page.partition('id="grants"')[2].partition("</table>")[0]
    assert table.index(">refund</td>") < table.index(">payment</td>")
    assert "-$5.00" in table
