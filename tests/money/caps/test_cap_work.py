"""Tests how much work caps cause in the database: none for calls without caps."""

from dataclasses import dataclass, field

import pytest

from tests.database.test_plans import OPENED, plan_of
from tests.support.databases import own_database
from tests.support.ledger import (
    LIMITS,
    Process,
    held,
    make_tenant,
    rows,
    running_process,
    settlement,
)
from tests.support.ledger_months import OldBooks, this_month
from tollkeeper.database.round_trips import BoundStatement, RoundTrips, Rows
from tollkeeper.money.caps import store as caps
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.caps.service import Caps
from tollkeeper.money.holds import statements as ledger


@dataclass
class Sent:
    """Records the names of the statements in each round trip."""

    trips: list[list[str]] = field(default_factory=list)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    found = Sent()
    send_all = RoundTrips._send_all

    async def noting(self: RoundTrips, *statements: BoundStatement) -> list[Rows]:
        found.trips.append([statement.name or statement.sql for statement, _ in statements])
        return await send_all(self, *statements)

    monkeypatch.setattr(RoundTrips, "_send_all", noting)
    return found


LOCKING = [
    "BEGIN",
    "tollkeeper_fast_transaction",
    "tollkeeper_lock_accounts",
    "tollkeeper_clock_and_keys",
    "tollkeeper_projects_and_folds",
]
HOLD = [LOCKING, ["tollkeeper_write_holds", "COMMIT"]]
SETTLEMENT = [["tollkeeper_resolve"]]
WRITING_CAPPED = ["tollkeeper_write_holds", "tollkeeper_count_holds_in_caps", "COMMIT"]
# A process that has not seen the organization yet finds out in the first round trip.
FIRST_CAPPED_HOLD = [LOCKING, ["tollkeeper_read_caps"], WRITING_CAPPED]
CAPPED_HOLD = [[*LOCKING, "tollkeeper_read_caps"], WRITING_CAPPED]


async def _written(process: Process) -> dict[str, int]:
    """Returns for each table how many rows were inserted, updated or deleted so far."""
    await rows(process.database, "SELECT pg_stat_force_next_flush()")
    await rows(process.database, "SELECT 1")
    found = await rows(
        process.database,
        r"""
        SELECT regexp_replace(relname, '_(\d{6}|default)$', ''),
            sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint
        FROM pg_stat_user_tables GROUP BY 1
        """,
    )
    return dict(found)


async def test_calls_without_caps_do_what_they_always_did(shared_conninfo: str, sent: Sent) -> None:
    async with running_process(own_database(shared_conninfo, "no_caps"), pool_size=1) as process:
        tenant = await make_tenant(process.database, credit=10**6)
        # Another organization has caps.
        neighbour = await make_tenant(process.database, credit=10**6)
        caps_service = Caps(process.database, LIMITS)
        await caps_service.cap_set(
            neighbour.organization_id, 10**5, CapPeriod.DAY, key_id=neighbour.key_id
        )
        first = await held(process, tenant, 10)
        await process.ledger.resolve(settlement(first, 4), first)
        sent.trips.clear()
        before = await _written(process)
        hold = await held(process, tenant, 10)
        await process.ledger.resolve(settlement(hold, 4), hold)
        assert sent.trips == [*HOLD, *SETTLEMENT]
        after = await _written(process)
        changed = {name: count - before.get(name, 0) for name, count in after.items()}
        assert {name: count for name, count in changed.items() if count} == {
            "accounts": 1,
            "project_accounts": 1,
            "processes": 1,
            "reservations": 1,
            "resolutions": 1,
            # The row of the first call is folded and deleted, and the second call adds a row.
            "unfolded": 2,
            "cost_rollup": 2,
        }
        for trips in (FIRST_CAPPED_HOLD, CAPPED_HOLD):
            sent.trips.clear()
            capped = await held(process, neighbour, 10)
            await process.ledger.resolve(settlement(capped, 4), capped)
            assert sent.trips == [*trips, *SETTLEMENT]
        # And back: without caps, nobody looks for any after the next call.
        await caps_service.cap_clear(neighbour.organization_id, key_id=neighbour.key_id)
        await held(process, neighbour, 10)
        sent.trips.clear()
        await held(process, neighbour, 10)
        assert sent.trips == HOLD


async def test_caps_open_no_partition(shared_conninfo: str) -> None:
    """A call reads and counts caps without a look at reservations."""
    async with running_process(
        own_database(shared_conninfo, "plans_of_caps"), pool_size=1
    ) as process:
        await OldBooks(process).begin(*(this_month().plus(-number) for number in range(1, 13)))
        tenant = await make_tenant(process.database, credit=10**6)
        caps_service = Caps(process.database, LIMITS)
        await caps_service.cap_set(
            tenant.organization_id, 10**5, CapPeriod.DAY, key_id=tenant.key_id
        )
        await process.ledger.resolve(settlement(hold := await held(process, tenant, 10), 4), hold)
        ids = [[one.int] for one in (tenant.organization_id, tenant.project_id, tenant.key_id)]
        *_, folding = ledger.lock_statements(*ids)
        for bound in (folding, caps.read_statement(*ids)):
            plan = await plan_of(process, bound)
            assert not OPENED.findall(plan), plan
