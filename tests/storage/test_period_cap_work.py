"""Tests how much work period caps cause in the database: none for calls without period caps."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.storage.test_plans import OPENED, plan_of
from tests.support.databases import own_database
from tests.support.ledger import (
    LIMITS,
    Process,
    held,
    hold_of,
    make_tenant,
    rows,
    running_process,
    settlement,
)
from tests.support.ledger_months import OldBooks, this_month
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.services.ledger.caps import Caps
from tollkeeper.storage import ledger, period_caps
from tollkeeper.storage.round_trips import BoundStatement, RoundTrips, Rows, run_alone


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
CAPPED_HOLD = [
    LOCKING,
    ["tollkeeper_ended_holds", "tollkeeper_period_caps"],
    ["tollkeeper_write_holds", "tollkeeper_write_period_caps", "COMMIT"],
]


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


async def test_calls_without_period_caps_do_what_they_always_did(
    shared_conninfo: str, sent: Sent
) -> None:
    async with running_process(
        own_database(shared_conninfo, "no_period_caps"), pool_size=1
    ) as process:
        tenant = await make_tenant(process.database, credit=10**6)
        # Another organization has a period cap.
        neighbour = await make_tenant(process.database, credit=10**6)
        caps = Caps(process.database, LIMITS)
        await caps.cap_set(neighbour.organization_id, 10**5, CapPeriod.DAY, key_id=neighbour.key_id)
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
        sent.trips.clear()
        capped = await held(process, neighbour, 10)
        await process.ledger.resolve(settlement(capped, 4), capped)
        assert sent.trips == [*CAPPED_HOLD, *SETTLEMENT]


async def test_period_caps_open_the_partitions_of_their_month_only(shared_conninfo: str) -> None:
    async with running_process(
        own_database(shared_conninfo, "plans_of_period_caps"), pool_size=1
    ) as process:
        month = this_month()
        await OldBooks(process).begin(*(month.plus(-number) for number in range(1, 13)))
        tenant = await make_tenant(process.database, credit=10**6)
        caps = Caps(process.database, LIMITS)
        await caps.cap_set(tenant.organization_id, 10**5, CapPeriod.DAY, key_id=tenant.key_id)
        holds = [await held(process, tenant, 10) for _ in range(3)]
        for hold in holds:
            await process.ledger.resolve(settlement(hold, 4), hold)
        reading = await _reading(process, hold_of(tenant, 1))
        for bound in reading:
            plan = await plan_of(process, bound)
            assert set(OPENED.findall(plan)) == {f"reservations_{month.number}"}, plan


async def _reading(process: Process, hold: Any) -> tuple[BoundStatement, ...]:
    """Returns the statements that read the period caps for a hold, and rolls the transaction back."""
    ids = (hold.organization_id, hold.project_id, hold.key_id)
    async with (
        process.database.reading() as connection,
        connection.transaction(force_rollback=True),
    ):
        locking = ledger.lock_statements(*([one.int] for one in ids))
        found = [await run_alone(connection, bound) for bound in locking]
        locked, ended = ledger.locked_accounts(found, LIMITS)
        assert len(ended) == 3
        return period_caps.read_statements(locked, ended, [hold.key_id])
