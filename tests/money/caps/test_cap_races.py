"""Tests caps that are changed while calls are resolved."""

import asyncio
from typing import Any

import pytest

from tests.support.capped_books import DAY, WEEK, CappedBooks
from tests.support.ledger import hold_of, release, settlement
from tollkeeper.money.caps import counts as cap_counts
from tollkeeper.money.holds.rule import Refusal


async def test_a_call_that_ends_while_a_cap_is_set_is_counted_once(
    world: CappedBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A settlement does not wait for the account's lock. So it can be committed after all resolutions
    were folded into the account and before the reservations are counted."""
    settled, marked, running = await world.hold(6), await world.hold(5), await world.hold(4)
    recount = cap_counts.recount

    async def recount_after_ends(*arguments: Any) -> None:
        await world.settle(settled, 2)
        assert await world.process.ledger.resolve(settlement(marked, 7), marked)
        await recount(*arguments)

    monkeypatch.setattr(cap_counts, "recount", recount_after_ends)
    use = await world.set(20, DAY, key=world.tenant.key_id)
    assert (use.held_picousd, use.spent_picousd) == (4, 9)
    await world.check()
    await world.release(running)
    assert await world.uses() == [(0, 9, 11)]
    await world.check()


async def test_caps_come_and_go_while_calls_run(world: CappedBooks) -> None:
    """Two processes hold and settle while an operator sets, raises and removes caps."""
    organization, key = world.tenant.organization_id, world.tenant.key_id
    done = asyncio.Event()

    async def calls(side: int) -> int:
        ledger = world.processes[side].ledger
        admitted = 0
        while not done.is_set():
            hold = hold_of(world.tenant, 10)
            if (await ledger.hold(hold)).refusal is None:
                admitted += 1
                end = release(hold) if admitted % 5 == 0 else settlement(hold, admitted % 13)
                assert await ledger.resolve(end, hold)
            await asyncio.sleep(0)
        return admitted

    running = [asyncio.create_task(calls(side)) for side in (0, 1, 0, 1)]
    for turn in range(12):
        period = (DAY, WEEK)[turn % 2]
        await world.set(10**5 + turn, period, key=key)
        await world.set(10**5 + turn, period)
        if turn % 3 == 2:
            await world.caps.cap_clear(organization, key_id=key, period=period)
        if turn % 4 == 3:
            await world.caps.cap_clear(organization)
    done.set()
    assert sum(await asyncio.gather(*running)) > 0
    await world.check()
    await world.set(0, DAY, key=key)
    assert await world.refusal(1) is Refusal.KEY_CAP
    await world.check()
