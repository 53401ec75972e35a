"""Tests that holds of all organizations wait in one queue, in which the organizations take turns."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock, Mock
from uuid import uuid4

from tests.support.backend_calls import until
from tests.support.ledger import LedgerTenant, hold_of
from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.money.holds.group_writer import BATCH_MAX, Handout
from tollkeeper.money.holds.rule import REFUSED_AS_UNKNOWN
from tollkeeper.money.holds.service import Holds
from tollkeeper.money.holds.store import HoldTransaction, LedgerStore
from tollkeeper.money.holds.values import Hold, LockedAccounts


def _tenant() -> LedgerTenant:
    return LedgerTenant(OrganizationId(uuid4()), ProjectId(uuid4()), KeyId(uuid4()))


class _Store(LedgerStore, HoldTransaction):
    """Replaces the database. Records each batch, and finds no account after `go_on` is set."""

    connection: Any = None

    def __init__(self) -> None:
        self.batches: list[list[Hold]] = []
        self.go_on = asyncio.Event()

    @asynccontextmanager
    async def hold_transaction(self) -> AsyncIterator["_Store"]:
        yield self

    async def lock(self, holds: Sequence[Hold], *, lock_wait_s: float | None) -> LockedAccounts:
        self.batches.append([*holds])
        await self.go_on.wait()
        return LockedAccounts({}, {}, 0)

    async def write(self, accounts: LockedAccounts, admitted: Sequence[Hold]) -> None:
        assert not admitted


async def test_an_organization_that_hammers_its_account_waits_behind_itself() -> None:
    store, policies = _Store(), Mock(current=AsyncMock(return_value={}))
    holds = Holds(
        store, policies, Handout(lambda: True), committed=Mock(), unused=Mock(), in_doubt=Mock()
    )
    hostile, quiet = _tenant(), _tenant()
    first = holds.submit(hold_of(hostile, 1))
    await until(lambda: len(store.batches) == 1)
    flood = [holds.submit(hold_of(hostile, 1)) for _ in range(4 * BATCH_MAX)]
    held = hold_of(quiet, 1)
    found = holds.submit(held)
    store.go_on.set()
    assert await found is REFUSED_AS_UNKNOWN
    assert held in store.batches[1][:2]
    assert len(await asyncio.gather(first, *flood)) == len(flood) + 1
