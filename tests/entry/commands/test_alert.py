"""Tests `tollkeeper alert`, which lists the raised alerts."""

import asyncio
from typing import Any
from uuid import uuid4

from tests.support.books import USD, Books
from tests.support.ledger import running_process
from tests.support.program import Program
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.reports.alerts.service import Alerts


async def test_raised_alerts_are_listed_with_their_organization(
    operator: Program, books_conninfo: str
) -> None:
    name = f"stopped {uuid4().hex}"
    created = await asyncio.to_thread(operator.json, "organization", "create", name)
    organization = created["id"]
    cap = ("cap", "set", organization, "0", "--period", "month")
    await asyncio.to_thread(operator.json, *cap)
    async with running_process(books_conninfo) as process:
        await Alerts(process.database, {}, None).check()
    listed = await asyncio.to_thread(operator.json, "alert", "list")
    [alert] = [
        alert for alert in listed["data"] if alert["subject"].get("organization_id") == organization
    ]
    assert (alert["kind"], alert["level"], alert["about"]) == ("cap", 100, f"{name}, month")
    assert alert["detail"] == "0 of 0 USD are used: 100 %."
    assert alert["raised_at"] > 1_700_000_000
    shown = (await asyncio.to_thread(operator.run, "alert", "list")).out
    assert name in shown


async def test_alerts_show_names_and_present_values(
    operator: Program, books: Books, books_conninfo: str
) -> None:
    organization = await books.services.organizations.organization_show(books.organization)
    # Other tests raise alerts too. If two objects have the same name, their ids are also shown.
    project, key = f"Web {uuid4().hex}", f"app {uuid4().hex}"
    await books.services.projects.project_rename(books.project, project)
    await books.services.project_keys.project_key_rename(books.key, key)
    await books.services.caps.cap_set(
        books.organization, 10 * USD, CapPeriod.WEEK, key_id=books.key
    )

    async def listed() -> dict[str, Any]:
        async with running_process(books_conninfo) as process:
            await Alerts(process.database, {}, None).check()
        found = (await asyncio.to_thread(operator.json, "alert", "list"))["data"]
        [alert] = [one for one in found if one["subject"].get("key_id") == str(books.key)]
        return dict(alert)

    await books.spend(8 * USD, 8 * USD)
    first = await listed()
    assert first["about"] == f"{organization.name}, {project}, {key}, week"
    assert first["detail"] == "8 of 10 USD are used: 80 %."
    await books.spend(USD, USD)
    second = await listed()
    assert second["detail"] == "9 of 10 USD are used: 90 %."
    assert second == {**first, "detail": second["detail"]}


async def test_a_gateway_without_alerts_of_its_own_is_left_out(operator: Program) -> None:
    """During an upgrade, the gateway at the operator port may be older than the command. It then
    answers 404."""

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"status": "not found"}'
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as older:
        port = str(older.sockets[0].getsockname()[1])
        asking = operator.with_environment(TOLLKEEPER_OPERATOR__PORT=port)
        listed = await asyncio.to_thread(asking.json, "alert", "list")
    assert all("gateway" not in alert["subject"] for alert in listed["data"])
