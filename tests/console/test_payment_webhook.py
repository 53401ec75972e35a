"""Tests the payment webhook over HTTP: only signed events count, and unfinished requests keep no event out."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import stripe_events as stripe
from tests.support.console_site import ConsoleSite, serving_console
from tests.support.http_client import http_client
from tests.support.scripted_gateway import eventually
from tollkeeper.console import small_bodies
from tollkeeper.money.payments.rule import EventOutcome
from tollkeeper.money.payments.stripe_events import read_event
from tollkeeper.setup.payments import TOLERANCE_S
from tollkeeper.setup.settings import Settings, SettingsError
from tollkeeper.setup.settings.schema import PaymentsSettings

_PATH = "/webhooks/stripe"
_NEW_SECRET = "whsec_new"
_TEST_SECRET = "whsec_of_the_test_mode"


@pytest.fixture
def settings(site: ConsoleSite, tmp_path: Path) -> Settings:
    """Returns settings with two secrets, as during a rotation, and a secret of the test mode."""
    sources = []
    for name, secret in (("old", stripe.SECRET), ("new", _NEW_SECRET), ("test", _TEST_SECRET)):
        (tmp_path / name).write_text(f"{secret}\n")
        sources.append(f"file:{tmp_path / name}")
    secrets = {"live": sources[:2], "test": sources[2:]}
    payments = PaymentsSettings.model_validate({"webhook_secrets": secrets})
    return site.settings.model_copy(update={"payments": payments})


@pytest.fixture
async def provider(site: ConsoleSite, settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving_console(settings, site.services) as address,
        http_client(address) as client,
    ):
        yield client


async def _granted(site: ConsoleSite) -> dict[str, int]:
    found = await site.services.accounts.credit_list(site.judged.scripted.tenant.organization_id)
    return {grant.kind: grant.amount_picousd // 10**10 for grant in found if grant.payment_id}


async def test_a_signed_event_is_booked_without_a_session(
    site: ConsoleSite, provider: httpx2.AsyncClient
) -> None:
    organization = site.judged.scripted.tenant.organization_id
    payment = stripe.new_payment()
    for secret in (stripe.SECRET, _NEW_SECRET):
        body = stripe.succeeded(payment, 1234, organization)
        answer = await provider.post(_PATH, content=body, headers=stripe.signed(body, secret))
        assert (answer.status_code, answer.text) == (200, "booked")
    assert await _granted(site) == {"payment": 1234}
    page = await site.services.audit.audit_list(organization_id=organization, limit=1)
    assert page.entries[0].actor.name.startswith("stripe evt_")


async def test_a_secret_signs_the_events_of_its_own_mode_only(
    site: ConsoleSite, provider: httpx2.AsyncClient
) -> None:
    """The secret of the test mode is known to more people, and test payments cost nothing."""
    organization = site.judged.scripted.tenant.organization_id
    for livemode, secret in ((True, _TEST_SECRET), (False, stripe.SECRET), (False, _NEW_SECRET)):
        body = stripe.succeeded(stripe.new_payment(), 9, organization, livemode=livemode)
        answer = await provider.post(_PATH, content=body, headers=stripe.signed(body, secret))
        assert (answer.status_code, await _granted(site)) == (400, {}), answer.text
        listed = {event.id for event in await site.services.payments.payment_event_list()}
        assert read_event(body).id not in listed
        # The provider repeats the event, so it's booked once the settings are right.
        assert "webhook_secrets" in answer.text
    body = stripe.succeeded(stripe.new_payment(), 1234, organization, livemode=False)
    answer = await provider.post(_PATH, content=body, headers=stripe.signed(body, _TEST_SECRET))
    assert (answer.status_code, answer.text) == (200, "booked")
    assert await _granted(site) == {"test_payment": 1234}


async def test_forged_events_change_and_record_nothing(
    site: ConsoleSite, provider: httpx2.AsyncClient
) -> None:
    body = stripe.succeeded(stripe.new_payment(), 1234, site.judged.scripted.tenant.organization_id)
    now = int(time.time())
    forged: list[tuple[bytes, dict[str, Any]]] = [
        (body, {}),
        (body, {"Stripe-Signature": "nonsense"}),
        (body, {"Stripe-Signature": f"t={now}"}),
        (body, stripe.signed(body, "whsec_other")),
        (body, stripe.signed(body, at=now - TOLERANCE_S - 60)),
        (body.replace(b"1234", b"9999"), stripe.signed(body)),
        (b"\xff", {"Stripe-Signature": f"t={now},v1=00"}),
        (body, {"Stripe-Signature": f"t={now},v1=\xe9".encode()}),
        (body, {"Stripe-Signature": f"t={now},v1=".encode() + b"\xff"}),
        (body, {"Stripe-Signature": f"t={'9' * 5000},v1=00"}),
    ]
    for content, headers in forged:
        answer = await provider.post(_PATH, content=content, headers=headers)
        assert answer.status_code == 400, headers
    assert await _granted(site) == {}
    events = await site.services.payments.payment_event_list(limit=1000)
    assert read_event(body).id not in {event.id for event in events}


async def test_answers_say_whether_a_repetition_helps(
    site: ConsoleSite, provider: httpx2.AsyncClient
) -> None:
    cases = {
        stripe.event("customer.created", {"id": "cus_1"}): (200, EventOutcome.IGNORED),
        stripe.succeeded(stripe.new_payment(), 5, currency="eur"): (200, EventOutcome.REFUSED),
        stripe.succeeded(stripe.new_payment(), 5): (200, EventOutcome.UNASSIGNED),
        stripe.succeeded(stripe.new_payment(), 5, "nobody"): (
            422,
            EventOutcome.UNKNOWN_ORGANIZATION,
        ),
        b'{"id": 5}': (400, None),
    }
    for body, (status, outcome) in cases.items():
        answer = await provider.post(_PATH, content=body, headers=stripe.signed(body))
        assert answer.status_code == status, answer.text
        assert outcome is None or answer.text.startswith(f"{outcome}: ")


async def test_the_address_needs_a_secret_in_the_settings(site: ConsoleSite) -> None:
    body = stripe.succeeded(stripe.new_payment(), 5)
    async with http_client(site.address) as client:
        answer = await client.post(_PATH, content=body, headers=stripe.signed(body))
    assert answer.status_code == 404


async def test_a_secret_that_is_none_stops_the_start(
    site: ConsoleSite, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "new").write_text("sk_live_something")
    with pytest.raises(SettingsError, match="whsec_") as refused:
        async with serving_console(settings, site.services):
            pass
    assert "sk_live" not in str(refused.value)


async def test_no_secret_is_of_both_modes(
    site: ConsoleSite, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "test").write_text(_NEW_SECRET)
    with pytest.raises(SettingsError, match=r"payments\.webhook_secrets\.test.* own secret"):
        async with serving_console(settings, site.services):
            pass


async def test_bodies_that_do_not_end_keep_no_event_out(
    site: ConsoleSite, provider: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_bodies, "READING_MAX", 2)
    url, slow = provider.base_url, []
    for _ in range(4):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST {_PATH} HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: 1000\r\n\r\n{{"
        writer.write(head.encode())
        slow.append((reader, writer))
    # The console ends two of the slow requests to make room for the other two.
    answers = [asyncio.create_task(reader.readline()) for reader, _ in slow]
    await eventually(lambda: sum(answer.done() for answer in answers) == 2)
    assert {answer.result()[:12] for answer in answers if answer.done()} == {b"HTTP/1.1 408"}
    body = stripe.succeeded(stripe.new_payment(), 7, site.judged.scripted.tenant.organization_id)
    answer = await provider.post(_PATH, content=body, headers=stripe.signed(body))
    assert answer.text == "booked"
    for _, writer in slow:
        writer.close()
    await asyncio.gather(*answers)


async def test_a_large_body_is_refused(provider: httpx2.AsyncClient) -> None:
    body = b" " * (small_bodies.BODY_BYTES_MAX + 1)
    answer = await provider.post(_PATH, content=body, headers=stripe.signed(body))
    assert answer.status_code == 413
