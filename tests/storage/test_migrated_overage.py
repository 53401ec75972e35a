"""Tests the migration that recomputes the overage in flight of all accounts."""

import secrets

import pytest
from msgspec.structs import replace

from tests.support.databases import database_at
from tests.support.ledger import (
    differences,
    fold,
    hold_of,
    make_tenant,
    rows,
    run,
    running_process,
    settlement,
)
from tollkeeper.domain.ledger import Mark
from tollkeeper.storage.migrations import migrate


@pytest.fixture
def earlier_schema(shared_conninfo: str) -> str:
    return database_at(shared_conninfo, f"before_recount_{secrets.token_hex(4)}", "0038")


async def test_the_overage_in_flight_is_exact_after_the_migration(earlier_schema: str) -> None:
    """One organization has calls in flight, a settled call and an unsettled call. The other one has only a
    settled call. Earlier code left wrong amounts at both."""
    async with running_process(earlier_schema) as process:
        active = await make_tenant(process.database, credit=100)
        idle = await make_tenant(process.database, credit=100)
        holds = [
            replace(hold_of(tenant, 0), overage_max_picousd=overage_max)
            for tenant, overage_max in ((active, 1), (active, 2), (active, 4), (idle, 8))
        ]
        for hold in holds:
            await process.ledger.hold(hold)
        _, settled, unsettled, settled_of_idle = holds
        await process.ledger.resolve(settlement(settled, 0))
        await process.ledger.resolve(settlement(settled_of_idle, 0))
        await process.store.mark_all([Mark(active.organization_id, unsettled.id, "test")])
        await run(process.database, "UPDATE accounts SET overage_in_flight = 77")
        migrate(earlier_schema, force=True)
        assert await differences(process.database) == []
        for tenant in (active, idle):
            await fold(process, tenant)
        assert await differences(process.database) == []
        amounts = await rows(process.database, "SELECT overage_in_flight FROM accounts ORDER BY 1")
        assert amounts == [(0,), (1,)]
