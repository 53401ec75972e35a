"""`tollkeeper alert`: what a gateway has found wrong."""

import asyncio
from uuid import uuid4

from tests.support.ledger import running_process
from tests.support.program import Program
from tollkeeper.services.alerts import Alerts


async def test_raised_alerts_are_listed_with_their_organization(
    operator: Program, books_conninfo: str
) -> None:
    name = f"stopped {uuid4().hex}"
    created = await asyncio.to_thread(operator.json, "organization", "create", name)
    organization = created["id"]
    cap = ("cap", "set", organization, "0", "--period", "month")
    await asyncio.to_thread(operator.json, *cap)
    async with running_process(books_conninfo) as process:
        await Alerts(process.database, {}, None, 60).check()
    listed = await asyncio.to_thread(operator.json, "alert", "list")
    [alert] = [
        alert for alert in listed["data"] if alert["subject"].get("organization_id") == organization
    ]
    assert (alert["kind"], alert["level"], alert["about"]) == ("cap", 100, name)
    assert alert["detail"] == "0 of 0 USD are used: 100 %."
    assert alert["raised_at"] > 1_700_000_000
    shown = (await asyncio.to_thread(operator.run, "alert", "list")).out
    assert name in shown
