"""Holds of many organizations wait in one queue, and the organizations take turns."""

import asyncio
from collections.abc import Sequence
from uuid import uuid4

from tests.support.ledger import LedgerTenant, hold_of
from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.admission import ADMITTED, Decision
from tollkeeper.domain.ledger import Hold
from tollkeeper.services.ledger.group_writer import BATCH_MAX
from tollkeeper.services.ledger.handout import Handout
from tollkeeper.services.ledger.hold_queue import HoldQueue, WantedHold


def _tenant() -> LedgerTenant:
    return LedgerTenant(OrganizationId(uuid4()), ProjectId(uuid4()), KeyId(uuid4()))


async def test_an_organization_that_hammers_its_account_waits_behind_itself() -> None:
    batches: list[list[Hold]] = []
    go_on = asyncio.Event()

    async def write(
        wanted: Sequence[WantedHold], *, lock_wait_s: float | None
    ) -> Sequence[Decision]:
        batches.append([one.hold for one in wanted])
        await go_on.wait()
        return [ADMITTED] * len(wanted)

    queue, hostile, quiet = HoldQueue(write, Handout()), _tenant(), _tenant()
    first = queue.submit(WantedHold(hold_of(hostile, 1)))
    await asyncio.sleep(0.01)
    assert len(batches) == 1
    flood = [queue.submit(WantedHold(hold_of(hostile, 1))) for _ in range(4 * BATCH_MAX)]
    held = hold_of(quiet, 1)
    found = queue.submit(WantedHold(held))
    go_on.set()
    assert await found is ADMITTED
    assert held in batches[1][:2]
    assert len(await asyncio.gather(first, *flood)) == len(flood) + 1
