"""Tests the page Payments: it lists events of the payment provider and assigns a payment exactly once."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.console.test_confirmations import hidden_fields
from tests.support import stripe_events as stripe
from tests.support.console_site import ConsoleSite, form_fields, make_session, serving_console
from tests.support.http_client import http_client
from tollkeeper.money.payments.stripe_events import read_event
from tollkeeper.setup.settings import Settings
from tollkeeper.setup.settings.schema import PaymentsSettings
from tollkeeper.tenants.people import Person, Role

_TEST_SECRET = "whsec_of_the_test_mode"
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)


@pytest.fixture
def settings(site: ConsoleSite, tmp_path: Path) -> Settings:
    """Returns settings with the secret of the payment webhook."""
    secrets = {}
    for mode, secret in (("live", stripe.SECRET), ("test", _TEST_SECRET)):
        (tmp_path / mode).write_text(secret)
        secrets[mode] = [f"file:{tmp_path / mode}"]
    payments = PaymentsSettings.model_validate({"webhook_secrets": secrets})
    return site.settings.model_copy(update={"payments": payments})


@asynccontextmanager
async def _signed_in(
    site: ConsoleSite, settings: Settings, role: Role
) -> AsyncIterator[httpx2.AsyncClient]:
    own = site.judged.scripted.tenant.organization_id if role is Role.ORGANIZATION else None
    cookies = await make_session(site, Person(uuid4().hex, "Pia", role, own))
    async with (
        serving_console(settings, site.services) as address,
        http_client(address, cookies=cookies) as client,
    ):
        yield client


@pytest.fixture
async def operator(site: ConsoleSite, settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    async with _signed_in(site, settings, Role.OPERATOR) as client:
        yield client


async def _report(client: httpx2.AsyncClient, *bodies: bytes) -> None:
    """Sends signed events to the console, as Stripe does."""
    for body in bodies:
        secret = stripe.SECRET if read_event(body).livemode else _TEST_SECRET
        headers = stripe.signed(body, secret)
        answer = await client.post("/webhooks/stripe", content=body, headers=headers)
        assert answer.status_code in (200, 422), answer.text


async def _row(client: httpx2.AsyncClient, payment: str, path: str = "/payments") -> str:
    page = await client.get(path)
    assert page.status_code == 200, page.text
    [row] = [row for row in _ROW.findall(page.text) if payment in row]
    return str(row)


async def _sent(
    client: httpx2.AsyncClient, payment: str, organization: object, **more: str
) -> dict[str, str]:
    fields = await form_fields(client, uuid4().hex)
    return fields | {"payment": payment, "organization": str(organization)} | more


async def _granted_cents(site: ConsoleSite) -> dict[str, int]:
    found = await site.services.accounts.credit_list(site.judged.scripted.tenant.organization_id)
    return {grant.kind: grant.amount_picousd // 10**10 for grant in found if grant.payment_id}


async def test_a_payment_without_an_organization_is_assigned_once(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    tenant, payment = site.judged.scripted.tenant, stripe.new_payment()
    await _report(
        operator,
        stripe.succeeded(payment, 1234, livemode=False),
    )
    row = await _row(operator, payment)
    for shown in ("$12.34", ">test<", ">unassigned<", "no event names an organization", "Assign"):
        assert shown in row
    assert f'value="{payment}"' in (await operator.get(f"/payments?payment={payment}")).text
    sent = await _sent(operator, payment, tenant.organization_id)
    asked = await operator.post("/payments/assign", data=sent)
    organization = await site.services.organizations.organization_show(tenant.organization_id)
    for shown in (f"Assign $12.34 to {organization.name}?", "Available afterwards", "$22.34"):
        assert shown in asked.text
    assert await _granted_cents(site) == {}
    confirmed = hidden_fields(asked.text)
    answer = await operator.post("/payments/assign", data=confirmed)
    assert answer.status_code == 303, answer.text
    assert "its credit is $12.34." in (await operator.get(answer.headers["location"])).text
    # The same form a second time, another confirmed form, and another form without confirmation.
    assert (await operator.post("/payments/assign", data=confirmed)).status_code == 409
    again = await _sent(operator, payment, tenant.organization_id, confirmed="yes")
    assert (await operator.post("/payments/assign", data=again)).status_code == 303
    late = await _sent(operator, payment, tenant.organization_id)
    assert (await operator.post("/payments/assign", data=late)).status_code == 409
    assert await _granted_cents(site) == {"test_payment": 1234}
    row = await _row(operator, payment)
    assert ">booked<" in row
    assert f"/organizations/{tenant.organization_id}" in row
    assert "Assign" not in row
    entries = await site.services.audit.audit_list(organization_id=tenant.organization_id, limit=1)
    assert entries.entries[0].actor.name.startswith("Pia")


_NOTICE = "adds no credit until an operator assigns it: see"


async def test_the_overview_links_to_payments_without_an_organization(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    payment = stripe.new_payment()
    await _report(operator, stripe.succeeded(payment, 500, "nobody"))
    assert _NOTICE in (await operator.get("/")).text
    page = (await operator.get("/payments")).text
    table = page.partition('id="open-events"')[2].partition("</table>")[0]
    assert payment in table
    assert "there is no organization &#39;nobody&#39;" in table
    tenant = site.judged.scripted.tenant
    sent = await _sent(operator, payment, tenant.organization_id, confirmed="yes")
    assert (await operator.post("/payments/assign", data=sent)).status_code == 303
    page = (await operator.get("/payments")).text
    assert payment not in page.partition('id="open-events"')[2].partition("</table>")[0]
    assert await _granted_cents(site) == {"payment": 500}
    # Other tests leave payments without an organization.
    others = await site.services.payments.payment_check_unassigned()
    assert (_NOTICE in (await operator.get("/")).text) == others


async def test_the_amount_is_what_refunds_leave(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    tenant, payment, early = (
        site.judged.scripted.tenant,
        stripe.new_payment(),
        stripe.new_payment(),
    )
    await _report(
        operator,
        stripe.succeeded(payment, 1000),
        stripe.charge_refunded(payment, 400),
        stripe.completed(early, 700, payment_status="unpaid"),
    )
    asked = await operator.post(
        "/payments/assign", data=await _sent(operator, payment, tenant.organization_id)
    )
    assert "Assign $6.00 to" in asked.text
    answer = await operator.post("/payments/assign", data=hidden_fields(asked.text))
    assert "its credit is $6.00." in (await operator.get(answer.headers["location"])).text
    assert await _granted_cents(site) == {"payment": 1000, "refund": -400}
    asked = await operator.post(
        "/payments/assign", data=await _sent(operator, early, tenant.organization_id)
    )
    assert "No event has reported yet that the payment succeeded" in asked.text
    answer = await operator.post("/payments/assign", data=hidden_fields(asked.text))
    shown = await operator.get(answer.headers["location"])
    assert "It adds credit when it succeeds." in shown.text


async def test_wrong_input_assigns_nothing(operator: httpx2.AsyncClient, site: ConsoleSite) -> None:
    tenant, payment = site.judged.scripted.tenant, stripe.new_payment()
    await _report(operator, stripe.succeeded(payment, 900))
    for changed, status, message in (
        ({"payment": "pi_none"}, 404, "There is no payment pi_none."),
        ({"payment": "pi_\x00"}, 400, "only ASCII characters"),
        ({"payment": ""}, 400, "Payment is missing."),
        ({"organization": ""}, 400, "Organization is missing."),
        ({"organization": "Acme"}, 404, "There is no organization Acme."),
        ({"organization": str(uuid4())}, 404, "There is no organization"),
    ):
        for confirmed in ("", "yes"):
            sent = await _sent(operator, payment, tenant.organization_id, confirmed=confirmed)
            answer = await operator.post("/payments/assign", data=sent | changed)
            assert (answer.status_code, message in answer.text) == (status, True), changed
    assert await _granted_cents(site) == {}
    assert ">unassigned<" in await _row(operator, payment)


async def test_who_may_see_and_assign_payments(site: ConsoleSite, settings: Settings) -> None:
    tenant, payment = site.judged.scripted.tenant, stripe.new_payment()
    for role in (Role.VIEWER, Role.ORGANIZATION):
        async with _signed_in(site, settings, role) as client:
            await _report(client, stripe.succeeded(payment, 900))
            token = re.search(
                r'name="form_token" value="([0-9a-f]+)"',
                (await client.get(f"/organizations/{tenant.organization_id}")).text,
            )
            assert token is not None
            sent = {"form_token": token[1], "once": uuid4().hex, "confirmed": "yes"}
            sent |= {"payment": payment, "organization": str(tenant.organization_id)}
            assert (await client.post("/payments/assign", data=sent)).status_code == 403
            page = await client.get("/payments")
            assert page.status_code == (200 if role is Role.VIEWER else 403)
            assert (payment in page.text) == (role is Role.VIEWER)
            assert "Assign" not in page.text
    assert await _granted_cents(site) == {}
