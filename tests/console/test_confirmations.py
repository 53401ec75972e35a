"""Tests that the operator must confirm each change that moves money or is final, with amount and effect."""

import asyncio
import re
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx2
import pytest
from playwright.async_api import expect

from tests.support.console_site import (
    TOKEN,
    ConsoleSite,
    Watched,
    confirm,
    form_fields,
    form_token,
    make_session,
    serving_console,
)
from tests.support.http_client import http_client
from tests.support.upstream import chat, reset_before_headers
from tollkeeper.core.money import PICOUSD_PER_USD
from tollkeeper.tenants.people import Person, Role


@pytest.fixture
async def operator(site: ConsoleSite) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(site.address) as client:
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        yield client


def hidden_fields(text: str) -> dict[str, str]:
    """Returns the hidden fields of the confirmation form."""
    form = text.partition("data-confirmation")[2]
    return dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form))


async def test_nothing_is_granted_before_it_is_confirmed(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    tenant = site.judged.scripted.tenant
    path = f"/organizations/{tenant.organization_id}/grant-credit"
    sent = {
        "form_token": await form_token(operator),
        "once": "first",
        "amount": "-2.5",
        "note": "back",
    }
    asked = await operator.post(path, data=sent)
    assert asked.status_code == 200
    for expected in ("Withdraw $2.50?", "Available now", "$10.00", "Available afterwards", "$7.50"):
        assert expected in asked.text
    assert (
        await site.services.accounts.credit_show(tenant.organization_id)
    ).granted_picousd == 10**13
    fields = hidden_fields(asked.text)
    assert (fields["amount"], fields["note"], fields["confirmed"]) == ("-2.5", "back", "yes")
    assert fields["once"] != "first"
    answer = await operator.post(path, data=fields)
    assert answer.status_code == 303
    balance = await site.services.accounts.credit_show(tenant.organization_id)
    assert balance.granted_picousd == 75 * 10**11
    shown = await operator.get(answer.headers["location"])
    assert "$2.50 was withdrawn." in shown.text


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"amount": "-10.5"}, 409, "10.5 USD cannot be withdrawn: 10 USD is available."),
        ({"amount": "0"}, 400, "A grant of 0 USD changes nothing."),
        ({"amount": "-1", "kind": "grant"}, 400, "Credit that is withdrawn is of the kind"),
        ({"amount": "1", "note": "x" * 1001}, 400, "A note has at most 1000 characters."),
    ],
)
async def test_an_impossible_change_of_credit_is_refused_without_a_question(
    operator: httpx2.AsyncClient,
    site: ConsoleSite,
    fields: dict[str, str],
    status: int,
    reason: str,
) -> None:
    path = f"/organizations/{site.judged.scripted.tenant.organization_id}/grant-credit"
    refused = await operator.post(path, data={**await form_fields(operator, "once"), **fields})
    assert refused.status_code == status
    assert reason in refused.text
    assert "data-confirmation" not in refused.text


async def test_an_address_cannot_invent_an_amount(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    tenant = site.judged.scripted.tenant
    path = f"/organizations/{tenant.organization_id}"
    sent = {
        "form_token": await form_token(operator),
        "once": "invent",
        "amount": "1",
        "confirmed": "yes",
    }
    answer = await operator.post(f"{path}/grant-credit", data=sent)
    location = answer.headers["location"]
    assert "$1.00 was granted." in (await operator.get(location)).text
    for forged in (
        f"{path}?notice=credit-granted&amount=9000000000000",
        f"{path}?notice=The+gateway+moved+to+evil.example.",
        location.replace("%241.00+", "%249.00+"),
        location.replace("granted", "withdrawn"),
    ):
        page = (await operator.get(forged)).text
        assert 'role="status"' not in page, forged


async def test_what_became_unsettled_after_the_question_is_not_resolved(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    site.judged.model.play(reset_before_headers())
    early = await site.judged.entry(await site.judged.chat())
    sent = {"form_token": await form_token(operator), "once": "bulk", "how": "release"}
    asked = await operator.post("/unsettled/all", data=sent | {"older_than_hours": "0"})
    late = await site.judged.entry(await site.judged.chat())
    site.judged.model.play(chat())
    answer = await operator.post("/unsettled/all", data=hidden_fields(asked.text))
    assert answer.status_code == 303, answer.text
    found = [await site.services.activity.activity_show(one.request_id) for one in (early, late)]
    assert [one.settlement for one in found] == ["released", "unsettled"]
    # Without the time limit from the confirmation page, nothing is resolved.
    forged = sent | {"once": "bulk-2", "older_than_hours": "0", "confirmed": "yes"}
    assert (await operator.post("/unsettled/all", data=forged)).status_code == 400
    await site.services.reconciliation.ledger_resolve(late.request_id, settle_picousd=None)


async def test_only_enforcing_is_asked_about(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    policy = await site.judged.draft(mode="monitoring")
    sent = {
        "form_token": await form_token(operator),
        "once": "p1",
        "revision": str(policy.revision),
    }
    path = f"/policies/{policy.id}/publish"
    # The script first asks whether a confirmation is needed. This publishes nothing.
    assert (await operator.post(path, data=sent | {"asking": "yes"})).status_code == 204
    shown = await site.services.policies.policy_show(policy.organization_id, policy.id)
    assert shown.published is None
    assert (await operator.post(path, data=sent)).status_code == 303
    enforcing = await site.judged.draft(mode="enforcing")
    sent = {"form_token": sent["form_token"], "once": "p2", "revision": str(enforcing.revision)}
    asked = await operator.post(f"/policies/{enforcing.id}/publish", data=sent)
    assert asked.status_code == 200
    assert "are denied from now on" in asked.text


@pytest.mark.slow
async def test_a_dialog_is_left_and_confirmed_by_keyboard(
    site: ConsoleSite, watched: Watched
) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await page.goto(f"{site.address}/organizations/{tenant.organization_id}")
    await page.get_by_label("Amount in USD").fill("4")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Grant $4.00?")
    await expect(dialog).to_contain_text("Available afterwards")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_label("Amount in USD")).to_have_value("4")
    await page.get_by_role("button", name="Grant credit").press("Enter")
    await expect(dialog.get_by_role("link", name="Cancel")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("$4.00 was granted.")).to_be_visible()
    balance = await site.services.accounts.credit_show(tenant.organization_id)
    assert balance.granted_picousd == 10**13 + 4 * 10**12
    # A monitoring policy needs no confirmation, so the form is sent at once.
    policy = await site.judged.draft(mode="monitoring")
    await page.goto(f"{site.address}/policies/{policy.id}")
    await page.get_by_role("button", name="Publish draft").click()
    await expect(page.get_by_text("The draft is published.")).to_be_visible()


@pytest.mark.slow
async def test_a_cost_far_above_the_hold_is_confirmed(site: ConsoleSite, watched: Watched) -> None:
    page = watched.page
    site.judged.model.play(reset_before_headers())
    lost = await site.judged.entry(await site.judged.chat())
    site.judged.model.play(chat())
    await page.goto(f"{site.address}/activity/{lost.request_id}")
    await page.get_by_label("Actual cost in USD").fill("1")
    await page.get_by_role("button", name="Settle").click()
    await expect(page.get_by_role("dialog")).to_contain_text("more than twice the hold")
    await confirm(page, "Charge $1.00")
    await expect(page.get_by_text("$1.00 was charged.")).to_be_visible()
    settled = await site.services.activity.activity_show(lost.request_id)
    assert settled.cost_picousd == 10**12


async def test_a_form_grants_credit_once_at_several_consoles(site: ConsoleSite) -> None:
    tenant, accounts = site.judged.scripted.tenant, site.services.accounts
    before = (await accounts.credit_show(tenant.organization_id)).granted_picousd
    person = Person("ida", "Ida", Role.OPERATOR)
    async with (
        serving_console(site.settings, site.services) as second,
        http_client(site.address, cookies=await make_session(site, person)) as one,
        http_client(second, cookies=dict(one.cookies)) as other,
    ):
        sent = await form_fields(one, uuid4().hex) | {"amount": "5", "confirmed": "1"}
        path = f"/organizations/{tenant.organization_id}/grant-credit"
        answers = await asyncio.gather(*(client.post(path, data=sent) for client in (one, other)))
    assert sorted(answer.status_code for answer in answers) == [303, 409]
    granted = (await accounts.credit_show(tenant.organization_id)).granted_picousd - before
    assert granted == 5 * PICOUSD_PER_USD
