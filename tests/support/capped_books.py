"""Provides the ledger of a tenant with caps, on a database whose clock a test can set."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from tests.support.database_clock import DatabaseClock
from tests.support.databases import own_database
from tests.support.ledger import (
    LIMITS,
    LedgerTenant,
    Process,
    differences,
    fold,
    held,
    hold_of,
    make_database,
    make_process,
    make_tenant,
    release,
    settlement,
)
from tollkeeper.core.access import KeyId, ProjectId
from tollkeeper.money.caps.rule import CapPeriod, CapUse
from tollkeeper.money.caps.service import Caps
from tollkeeper.money.holds.rule import Refusal
from tollkeeper.money.holds.values import Hold

DAY, WEEK, MONTH, TOTAL = CapPeriod
NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)


@dataclass
class CappedBooks:
    """Contains two processes on one database, and one tenant with credit."""

    processes: tuple[Process, Process]
    clock: DatabaseClock
    tenant: LedgerTenant
    caps: Caps

    @property
    def process(self) -> Process:
        return self.processes[0]

    async def set(
        self,
        amount: int,
        period: CapPeriod,
        *,
        project: ProjectId | None = None,
        key: KeyId | None = None,
    ) -> CapUse:
        return await self.caps.cap_set(self.tenant.organization_id, amount, period, project, key)

    async def hold(self, amount: int, tenant: LedgerTenant | None = None) -> Hold:
        return await held(self.process, tenant or self.tenant, amount)

    async def refusal(self, amount: int, tenant: LedgerTenant | None = None) -> Refusal | None:
        hold = hold_of(tenant or self.tenant, amount)
        return (await self.processes[1].ledger.hold(hold)).refusal

    async def settle(self, hold: Hold, cost: int) -> None:
        assert await self.process.ledger.resolve(settlement(hold, cost), hold)

    async def release(self, hold: Hold) -> None:
        assert await self.process.ledger.resolve(release(hold), hold)

    async def uses(self) -> list[tuple[int, int, int]]:
        """Returns the held, spent and remaining amounts of each cap."""
        found = await self.caps.cap_show(self.tenant.organization_id)
        return [(use.held_picousd, use.spent_picousd, use.remaining_picousd) for use in found]

    async def check(self) -> None:
        """Checks every invariant before and after all resolved holds are folded."""
        assert await self.differences() == []
        await fold(self.process, self.tenant)
        assert await self.differences() == []

    async def differences(self) -> list[tuple[str, str, str]]:
        """Returns the differences without those about old holds, because the clock has jumped."""
        found = await differences(self.process.database, self.tenant.organization_id)
        return [one for one in found if one[0] != "no hold outlives its process"]


@pytest.fixture(scope="module")
def cap_clock(shared_conninfo: str) -> DatabaseClock:
    return DatabaseClock(own_database(shared_conninfo, f"caps_{uuid4().hex}"))


@pytest.fixture(name="world")
async def capped_books(cap_clock: DatabaseClock) -> AsyncIterator[CappedBooks]:
    with cap_clock:
        cap_clock.set(NOON)
        database = make_database(cap_clock.conninfo)
        await database.open()
        processes = make_process(database), make_process(database)
        tenant = await make_tenant(database, credit=10**6)
        yield CappedBooks(processes, cap_clock, tenant, Caps(database, LIMITS))
        for process in processes:
            await process.ledger.drain()
        await database.close()
