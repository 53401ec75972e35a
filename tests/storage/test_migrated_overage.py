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


async def test_the_calls_of_a_gateway_that_was_off_for_a_week_are_counted(
    earlier_schema: str,
) -> None:
    """Calls stay in flight in the ledger until a gateway starts again and recovers them."""
    async with running_process(earlier_schema) as process:
        mixed = await make_tenant(process.database, credit=100)
        only_old = await make_tenant(process.database, credit=100)
        old = [
            replace(hold_of(tenant, 0), overage_max_picousd=overage_max)
            for tenant, overage_max in ((mixed, 1), (mixed, 2), (only_old, 4), (only_old, 8))
        ]
        for hold in old:
            await process.ledger.hold(hold)
        await process.ledger.resolve(settlement(old[1], 0))
        await run(process.database, "UPDATE reservations SET held_at = held_at - interval '7 days'")
        recent = replace(hold_of(mixed, 0), overage_max_picousd=16)
        await process.ledger.hold(recent)
        await run(process.database, "UPDATE accounts SET overage_in_flight = 77")
        migrate(earlier_schema, force=True)
        assert await differences(process.database) == []
        for hold in (old[0], *old[2:], recent):
            await process.store.mark_all([Mark(hold.organization_id, hold.id, "test")])
        for tenant in (mixed, only_old):
            await fold(process, tenant)
        assert await differences(process.database) == []
        amounts = await rows(process.database, "SELECT overage_in_flight FROM accounts")
        assert amounts == [(0,), (0,)]


async def test_verification_compares_the_overage_in_flight_after_the_migration(
    earlier_schema: str,
) -> None:
    """Until then, code that does not keep it exact may run."""
    async with running_process(earlier_schema) as process:
        await make_tenant(process.database, credit=100)
        await run(process.database, "UPDATE accounts SET overage_in_flight = 77")
        assert await differences(process.database) == []
        await run(process.database, "UPDATE accounts SET overage = overage + 1")
        assert len(await differences(process.database)) == 1
        await run(process.database, "UPDATE accounts SET overage = overage - 1")
        migrate(earlier_schema, force=True)
        assert await differences(process.database) == []
        await run(process.database, "UPDATE accounts SET overage_in_flight = 77")
        assert len(await differences(process.database)) == 1
