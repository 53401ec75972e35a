"""Tests pages that operators use rarely: months, bills, checks, unsettled calls, renaming, people and the
audit."""

import asyncio
import csv
import gzip
import hashlib
import io
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx2
import pytest
from msgspec import structs

from tests.console.test_confirmations import hidden_fields
from tests.support.books import USD, open_books
from tests.support.changed_services import changed
from tests.support.console_site import (
    TOKEN,
    ConsoleSite,
    form_fields,
    make_session,
    serving_console,
)
from tests.support.http_client import http_client
from tests.support.ledger_months import NOW, OldBooks, busy
from tests.support.scripted_gateway import MODEL
from tollkeeper.console.pages import unsettled
from tollkeeper.console.sessions import COOKIE
from tollkeeper.core.months import Month
from tollkeeper.money.holds.rule import ADMITTED
from tollkeeper.money.unsettled.bulk_resolution import BulkAction
from tollkeeper.tenants.audit.service import Audit
from tollkeeper.tenants.people import Person, Role


@pytest.fixture
async def operator(site: ConsoleSite) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(site.address) as client:
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        yield client


async def test_a_bill_is_compared_with_the_ledger(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    sent = await form_fields(operator, "bill") | {
        "backend": "scripted",
        "columns": "day=date,model=model,requests=calls",
        "since": "2020-01-01",
        "until": "2020-01-02",
    }
    bill = {"file": ("bill.csv", b"date,model,calls\n2020-01-01,a,3\n", "text/csv")}
    answer = await operator.post("/reconcile", data=sent, files=bill)
    assert answer.status_code == 200, answer.text
    assert "The bill and the ledger differ in 1 place<" in answer.text
    assert "1 pair of day and model compared" in answer.text
    assert "missing in the ledger" in answer.text
    two = {"file": ("bill.csv", b"date,model,calls\n2020-01-01,a,3\n2020-01-01,b,4\n", "text/csv")}
    answer = await operator.post("/reconcile", data=sent | {"once": "bill-1"}, files=two)
    assert "The bill and the ledger differ in 2 places<" in answer.text
    wrong = sent | {"once": "bill-2", "columns": "day=date,model=model,prices=calls"}
    refused = await operator.post("/reconcile", data=wrong, files=bill)
    assert refused.status_code == 400
    assert "prices is not a figure that can be compared." in refused.text
    binary = {"file": ("bill.csv", b"\xff\xfe", "text/csv")}
    assert (
        await operator.post("/reconcile", data=sent | {"once": "bill-3"}, files=binary)
    ).status_code == 400


async def test_a_backend_is_tried_with_real_calls(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    path, calls = "/backends/scripted/try", len(site.judged.model.requests)
    asked = await operator.post(path, data=await form_fields(operator, "try"))
    assert "The provider charges for these calls" in asked.text
    assert len(site.judged.model.requests) == calls
    answer = await operator.post(path, data=hidden_fields(asked.text))
    assert answer.status_code == 200, answer.text
    assert answer.text.count(">works</span>") >= 2
    assert len(site.judged.model.requests) >= calls + 2
    assert (await operator.get("/backends/nothing/try")).status_code == 404


async def test_the_doctor_is_run(operator: httpx2.AsyncClient) -> None:
    answer = await operator.post("/doctor", data=await form_fields(operator, "doctor"))
    assert ">ok</span>" in answer.text
    assert ">warning</span>" in answer.text


async def test_calls_of_other_backends_do_not_hide_the_unsettled_calls_of_a_backend(
    operator: httpx2.AsyncClient, site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page lists a limited number of calls, oldest first."""
    monkeypatch.setattr(unsettled, "_SHOWN_MAX", 1)
    services, scripted = site.services, site.judged.scripted
    # Other tests of the site leave unsettled calls of the same backend.
    left = await services.bulk_resolution.ledger_backlog(older_than_s=0)
    await services.bulk_resolution.ledger_resolve_all(left.selection, BulkAction.RELEASE)
    books = await open_books(scripted.gateway, scripted.tenant, credit=0)
    # The model of `books` is not on this backend.
    older = books.hold_of(USD)
    newer = structs.replace(books.hold_of(USD), model=MODEL)
    for hold in (older, newer):
        assert await services.ledger.hold(hold) == ADMITTED
        await books.leave_unsettled(hold)
    page = (await operator.get("/unsettled?backend=scripted")).text
    shown = [hold for hold in (older, newer) if f"/unsettled/{hold.id}" in page]
    assert shown == [newer]
    assert "The oldest 1." in page
    for hold in (older, newer):
        await services.reconciliation.ledger_resolve(hold.id, settle_picousd=None)


async def test_the_page_says_that_it_does_not_list_all_admin_keys(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    """The tenant has one key before the test."""
    organization = site.judged.scripted.tenant.organization_id
    for further_keys, is_said in ((99, False), (1, True)):
        for _ in range(further_keys):
            await site.services.admin_keys.admin_key_create(
                organization, f"reader {uuid4()}", ["admin_api_keys:read"], None
            )
        page = (await operator.get(f"/organizations/{organization}")).text
        assert ("The oldest 100 keys;" in page) is is_said


async def test_things_are_renamed_and_archived(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    gateway = site.judged.scripted.gateway
    tenant, other = await gateway.make_tenant(), site.judged.scripted.tenant
    found = await site.services.admin_keys.admin_key_list(
        tenant.organization_id, after=None, limit=1
    )
    [admin_key] = found.keys
    [key] = await site.services.project_keys.project_key_list(tenant.project_id)
    admin_path = f"/admin-keys/{admin_key.id}/rename"
    for number, path in enumerate(
        (
            f"/organizations/{tenant.organization_id}/rename",
            f"/organizations/{tenant.organization_id}{admin_path}",
            f"/projects/{tenant.project_id}/rename",
            f"/keys/{key.id}/rename",
        )
    ):
        sent = await form_fields(operator, f"rename {number}") | {"name": f"New {number} {key.id}"}
        assert (await operator.post(path, data=sent)).status_code == 303, path
    # The path must name the organization to which the admin key belongs.
    foreign = await form_fields(operator, "rename 9") | {"name": "Evil"}
    answer = await operator.post(
        f"/organizations/{other.organization_id}{admin_path}", data=foreign
    )
    assert answer.status_code == 404
    assert (await site.services.admin_keys.admin_key_show(admin_key.id)).name == f"New 1 {key.id}"
    assert (await site.services.project_keys.project_key_show(key.id)).name == f"New 3 {key.id}"
    path = f"/organizations/{tenant.organization_id}/archive"
    asked = await operator.post(path, data=await form_fields(operator, "archive"))
    assert "its keys admit no calls" in asked.text
    assert (await operator.post(path, data=hidden_fields(asked.text))).status_code == 303
    archived = await site.services.organizations.organization_show(tenant.organization_id)
    assert archived.archived_at is not None


async def _send(client: httpx2.AsyncClient, path: str, once: str, **fields: str) -> httpx2.Response:
    """Sends a form of the console that is not confirmed yet."""
    return await client.post(path, data=await form_fields(client, once) | fields)


@pytest.fixture
async def owner(site: ConsoleSite, old: OldBooks) -> AsyncIterator[httpx2.AsyncClient]:
    """Signs in to a console whose ledger has past months with calls."""
    await busy(old)
    services = changed(site.services, months=old.months, reconciliation=old.reconciliation)
    async with (
        serving_console(site.settings, services) as address,
        http_client(address) as client,
    ):
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        yield client


async def _state(old: OldBooks, month: Month) -> str:
    [found] = [one for one in await old.months.ledger_months() if one.month == month]
    return found.state


async def test_an_old_month_is_closed_verified_exported_and_dropped(
    owner: httpx2.AsyncClient, old: OldBooks
) -> None:
    month = NOW.plus(-3)
    path, file = f"/months/{month}", f"/months/{month}.csv.gz"
    asked = await _send(owner, "/months/close", "close")
    assert f"Close {month}?" in asked.text
    assert await _state(old, month) == "open"
    confirmation = hidden_fields(asked.text)
    assert (await owner.post("/months/close", data=confirmation)).status_code == 303
    assert await _state(old, month) == "closed"

    found = await owner.get(file)
    assert found.headers["content-disposition"] == f'attachment; filename="ledger-{month}.csv.gz"'
    text = gzip.decompress(found.content)
    rows = list(csv.DictReader(io.StringIO(text.decode())))
    costs = [int(row["settled_picousd"]) + int(row["overage_picousd"]) for row in rows]
    assert sorted(costs) == [0, 4, 13, 30]

    assert (await _send(owner, "/verify", "verify")).status_code == 303
    assert await _state(old, month) == "proven"
    sent = {"file_name": "old.csv.gz", "sha256": hashlib.sha256(text).hexdigest().upper()}
    assert (await _send(owner, f"{path}/exported", "exported", **sent)).status_code == 303
    assert await _state(old, month) == "exported"
    assert "old.csv.gz" in (await owner.get("/months")).text

    asked = await _send(owner, f"{path}/drop", "drop")
    assert f"Drop 4 reservations of {month}?" in asked.text
    assert "They will be in old.csv.gz only." in asked.text
    assert await _state(old, month) == "exported"
    assert (await owner.post(f"{path}/drop", data=hidden_fields(asked.text))).status_code == 303
    assert await _state(old, month) == "dropped"
    assert await old.verify(full=True) == []
    page = (await owner.get("/months")).text
    assert ">dropped</span>" in page
    assert file not in page


async def test_the_audit_has_one_entry_for_the_export_of_a_month(
    owner: httpx2.AsyncClient, old: OldBooks
) -> None:
    month = NOW.plus(-3)
    path, file = f"/months/{month}", f"/months/{month}.csv.gz"

    async def operations() -> list[str]:
        audit = Audit(old.process.database, lambda: 0, retention_days=1)
        page = await audit.audit_list(object_id=str(month))
        return [entry.change.operation for entry in reversed(page.entries)]

    asked = await _send(owner, "/months/close", "close")
    await owner.post("/months/close", data=hidden_fields(asked.text))
    # A download changes nothing, and the file may not arrive. So it is not an export yet.
    text = gzip.decompress((await owner.get(file)).content)
    assert (await owner.get(file)).status_code == 200
    name = {"file_name": "old.csv.gz"}
    wrong = await _send(owner, f"{path}/exported", "wrong", **name, sha256="0" * 64)
    assert wrong.status_code == 400
    assert await operations() == ["ledger_close"]
    sent = name | {"sha256": hashlib.sha256(text).hexdigest()}
    answers = await asyncio.gather(
        *(_send(owner, f"{path}/exported", f"exported {number}", **sent) for number in range(3))
    )
    assert {answer.status_code for answer in answers} == {303}
    assert (await owner.get(file)).status_code == 200
    assert await operations() == ["ledger_close", "ledger_exported"]


async def test_steps_of_an_old_month_are_refused_in_another_order(
    owner: httpx2.AsyncClient, old: OldBooks
) -> None:
    month = NOW.plus(-3)
    path, file = f"/months/{month}", f"/months/{month}.csv.gz"
    digest = {"file_name": "old.csv.gz", "sha256": "0" * 64}
    for answer in (
        await owner.get(file),
        await _send(owner, f"{path}/exported", "open-1", **digest),
        await _send(owner, f"{path}/drop", "open-2"),
    ):
        assert answer.status_code == 409
        assert f"The month {month} is not closed." in answer.text
    asked = await _send(owner, "/months/close", "close")
    confirmation = hidden_fields(asked.text)
    for wrong, status in (("", 400), ("2026-13", 400), (str(NOW.plus(-2)), 409)):
        data = confirmation | {"once": f"month {wrong}", "month": wrong}
        assert (await owner.post("/months/close", data=data)).status_code == status
    assert await _state(old, month) == "open"
    await owner.post("/months/close", data=confirmation)
    # A second operator confirms the same question. The next month stays open.
    second = await owner.post("/months/close", data=confirmation | {"once": "second"})
    assert second.status_code == 409
    assert f"The month {month} is closed already." in second.text
    assert await _state(old, NOW.plus(-2)) == "open"

    unproven = await _send(owner, f"{path}/drop", "unproven")
    assert unproven.status_code == 409
    assert "is not proven yet" in unproven.text
    await _send(owner, "/verify", "verify")
    # The operator enters the digest of the file, which proves that the download was complete.
    refused = await _send(owner, f"{path}/exported", "digest", **digest)
    assert refused.status_code == 400
    assert "This is not the SHA-256 of the uncompressed file" in refused.text
    confirmed = await _send(owner, f"{path}/drop", "not exported", confirmed="yes")
    assert confirmed.status_code == 409
    assert "is not exported yet" in confirmed.text
    assert await _state(old, month) == "proven"


async def test_months_are_listed_and_the_present_one_is_not_closed(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    await site.judged.entry(await site.judged.chat())
    assert ">open</span>" in (await operator.get("/months")).text
    asked = await operator.post("/months/close", data=await form_fields(operator, "close"))
    confirmed = await form_fields(operator, "confirmed") | {"confirmed": "yes", "month": str(NOW)}
    for refused in (asked, await operator.post("/months/close", data=confirmed)):
        assert refused.status_code == 409
        assert "can be closed when it has been over for a day" in refused.text


async def test_the_audit_names_who_ended_all_sessions_of_a_person(site: ConsoleSite) -> None:
    ada = Person(f"ada-{uuid4().hex}", "Ada", Role.OWNER)
    vera = Person(f"vera-{uuid4().hex}", "Vera", Role.VIEWER)
    cookies = [await make_session(site, vera) for _ in range(2)]
    digest = hashlib.sha256(cookies[0][COOKIE].encode()).hexdigest()
    async with http_client(site.address, cookies=await make_session(site, ada)) as client:
        sent = await form_fields(client, uuid4().hex) | {"session": digest}
        asked = await client.post("/people/end", data=sent)
        assert (await client.post("/people/end", data=hidden_fields(asked.text))).status_code == 303
        sent = await form_fields(client, uuid4().hex) | {"everywhere": "1"}
        assert (await client.post("/sign-out", data=sent)).status_code == 303
    entries = (await site.services.audit.audit_list(actor=ada.subject)).entries
    assert {str(entry.actor) for entry in entries} == {f"console:Ada ({ada.subject})"}
    changes = [entry.change for entry in reversed(entries)]
    assert [(change.operation, change.object_id) for change in changes] == [
        ("console_session_end_all", vera.subject),
        ("console_session_end_all", ada.subject),
    ]
    assert changes[0].before == {"name": "Vera", "sessions": 2}
    assert {change.organization_id for change in changes} == {None}


async def test_the_audit_is_filtered_by_person(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    person = Person(f"ida-{uuid4().hex}", "Ida", Role.OWNER)
    async with http_client(site.address, cookies=await make_session(site, person)) as client:
        sent = await form_fields(client, uuid4().hex) | {"name": f"Org {uuid4().hex}"}
        assert (await client.post("/organizations", data=sent)).status_code == 303
        sent = await form_fields(client, uuid4().hex) | {"everywhere": "1"}
        await client.post("/sign-out", data=sent)
    page = await operator.get("/audit", params={"actor": person.subject.upper()})
    for expected in ("organization_create", "console_session_end_all", "the installation"):
        assert page.text.count(f">{expected}</") == 1, expected
    assert f'href="/audit?actor=console%3AIda%20%28{person.subject}%29"' in page.text
    assert "No change matches" in (await operator.get("/audit?actor=nobody-like-this")).text
    for name in ("actor", "object"):
        refused = await operator.get(f"/audit?{name}=%00x")
        assert refused.status_code == 400
        assert "must not contain a null character" in refused.text


async def test_a_null_character_is_refused(operator: httpx2.AsyncClient, site: ConsoleSite) -> None:
    sent = await form_fields(operator, uuid4().hex) | {"check": "x\x00"}
    organization = f"/organizations/{site.judged.scripted.tenant.organization_id}"
    for refused in (
        await operator.get("/policies/%00x"),
        await operator.post(f"{organization}/grant-check", data=sent),
    ):
        assert refused.status_code == 400
        assert "must not contain a null character" in refused.text


@pytest.mark.parametrize("path", ["/", "/costs", "/activity"])
async def test_an_empty_time_range_is_refused(operator: httpx2.AsyncClient, path: str) -> None:
    for query in ("since=2026-11-18&until=2026-11-18", "until=0"):
        refused = await operator.get(f"{path}?{query}")
        assert refused.status_code == 400
        assert "must end after it begins" in refused.text
