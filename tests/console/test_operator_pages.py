"""Tests pages that operators use rarely: months, bills, checks and renaming."""

import gzip
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2
import pytest

from tests.console.test_confirmations import hidden_fields
from tests.support.console_site import TOKEN, ConsoleSite, form_fields, serving_console
from tests.support.http_client import http_client
from tollkeeper.domain.months import Month
from tollkeeper.services.ledger.months import Export, LedgerMonth


@pytest.fixture
async def operator(site: ConsoleSite) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(site.address) as client:
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        yield client


async def test_a_bill_is_compared_with_the_books(
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
    assert "differ in 1 places" in answer.text
    assert "missing in the books" in answer.text
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


async def test_a_month_is_exported_by_who_has_the_file(site: ConsoleSite) -> None:
    """The operator enters the digest of the file, which proves that the download was complete."""
    text = b"id,hold\n1,2\n"
    noted: list[tuple[Export, str]] = []

    class Months:
        """Acts as the service with a closed month. The service itself has its own tests."""

        async def ledger_months(self) -> list[LedgerMonth]:
            return []

        async def ledger_export(self, month: Month, write: object) -> Export:
            write(text)  # type: ignore[operator]
            return Export(month, hashlib.sha256(text).digest(), 1)

        async def ledger_exported(self, export: Export, file_name: str) -> None:
            noted.append((export, file_name))

    services = replace(site.services, months=Months())  # type: ignore[arg-type]
    async with (
        serving_console(site.settings, services) as address,
        http_client(address) as client,
    ):
        await client.post("/sign-in", data={"token": TOKEN})
        found = await client.get("/months/2026-09.csv.gz")
        assert gzip.decompress(found.content) == text
        sent = await form_fields(client, "month") | {
            "file_name": "september.csv.gz",
            "sha256": "0" * 64,
        }
        assert (await client.post("/months/2026-09/exported", data=sent)).status_code == 400
        assert not noted
        sent |= {"once": "month-2", "sha256": hashlib.sha256(text).hexdigest()}
        assert (await client.post("/months/2026-09/exported", data=sent)).status_code == 303
    assert [name for _, name in noted] == ["september.csv.gz"]


async def test_months_are_listed_and_the_present_one_is_not_closed(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    await site.judged.entry(await site.judged.chat())
    assert ">open</span>" in (await operator.get("/months")).text
    asked = await operator.post("/months/close", data=await form_fields(operator, "close"))
    refused = await operator.post("/months/close", data=hidden_fields(asked.text))
    assert refused.status_code == 409
