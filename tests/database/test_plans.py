"""Tests that a call's work in the database does not grow with the tables, although plans are cached."""

import asyncio
import re
from contextlib import suppress

from psycopg import errors, sql

from tests.support.databases import own_database
from tests.support.ledger import (
    LedgerTenant,
    Process,
    another_project,
    held,
    hold_of,
    make_tenant,
    rows,
    run,
    running_process,
    settlement,
)
from tests.support.ledger_months import OldBooks, this_month
from tollkeeper.database.planning import PREFER_INDEX_LOOKUPS_IN_TRANSACTION
from tollkeeper.database.round_trips import BoundStatement
from tollkeeper.money.holds.statements import lock_statements
from tollkeeper.money.settlement.store import resolve_statement

# With fewer calls, the tables are so small that PostgreSQL chooses other plans.
_CALLS = 60
_ROWS_PER_CALL_MAX = 40


async def _read_so_far(process: Process) -> int:
    """Returns the number of rows read so far from the ledger's tables, by scans and by indexes."""
    # The pool has one connection, so this flush includes the counts of the ledger's statements.
    await rows(process.database, "SELECT pg_stat_force_next_flush()")
    await rows(process.database, "SELECT 1")
    [[found]] = await rows(
        process.database,
        """
        SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables
        WHERE relname IN ('unfolded', 'unsettled_marks', 'accounts')
           OR relname ~ '^(reservations|resolutions|overages)_'
        """,
    )
    return int(found)


async def _call(process: Process, tenant: LedgerTenant) -> None:
    hold = await held(process, tenant, 10)
    await process.ledger.resolve(settlement(hold, 4), hold)


async def test_a_call_reads_as_much_of_large_books_as_of_small_ones(conninfo: str) -> None:
    # The test has its own database, because reads by other tests would be counted.
    apart = own_database(conninfo, "plans")
    async with running_process(apart, pool_size=1) as process:
        tenant = await make_tenant(process.database, credit=10**9)
        for _ in range(_CALLS):
            await _call(process, tenant)
        # Now the planner knows that the tables are small, and makes every plan for small tables.
        await run(process.database, "ANALYZE")
        for _ in range(_CALLS):
            await _call(process, tenant)
        neighbour = await make_tenant(process.database, credit=10**9)
        holds = [hold_of(neighbour, 1) for _ in range(3000)]
        await asyncio.gather(*(process.ledger.hold(hold) for hold in holds))
        await asyncio.gather(
            *(process.ledger.resolve(settlement(hold, 1), hold) for hold in holds[:2900])
        )
        before = await _read_so_far(process)
        for _ in range(_CALLS):
            await _call(process, tenant)
        read = await _read_so_far(process) - before
        assert read <= _ROWS_PER_CALL_MAX * _CALLS
        await asyncio.gather(
            *(process.ledger.resolve(settlement(hold, 1), hold) for hold in holds[2900:])
        )


async def test_the_settlement_of_an_old_call_does_not_read_newer_calls(conninfo: str) -> None:
    """Otherwise one tenant's long calls would slow down the settlements of all tenants."""
    apart = own_database(conninfo, "plans_of_old_calls")
    async with running_process(apart, pool_size=1) as process:
        tenant = await make_tenant(process.database, credit=10**9)
        old = await held(process, tenant, 10)
        newer = [hold_of(tenant, 1) for _ in range(300)]
        await asyncio.gather(*(process.ledger.hold(hold) for hold in newer))
        await run(process.database, "ANALYZE")
        new = await held(process, tenant, 10)
        before = await _read_so_far(process)
        await asyncio.gather(
            *(process.ledger.resolve(settlement(hold, 4), hold) for hold in (old, new))
        )
        assert await _read_so_far(process) - before <= 2 * _ROWS_PER_CALL_MAX
        await asyncio.gather(*(process.ledger.resolve(settlement(hold, 1), hold) for hold in newer))


async def test_a_fold_does_not_read_the_marks_of_other_calls(conninfo: str) -> None:
    """Otherwise the failed calls of one tenant would slow down the admission of all tenants."""
    apart = own_database(conninfo, "plans_of_marks")
    async with running_process(apart, pool_size=1) as process:
        tenant = await make_tenant(process.database, credit=10**9)
        neighbour = await make_tenant(process.database, credit=10**9)
        await run(process.database, "ANALYZE")
        for _ in range(_CALLS):
            await _call(process, tenant)
        failed = [hold_of(neighbour, 1) for _ in range(3000)]
        await asyncio.gather(*(process.ledger.hold(hold) for hold in failed))
        await asyncio.gather(
            *(process.ledger.mark_unsettled(hold, "nobody knows") for hold in failed)
        )
        before = await _read_so_far(process)
        for _ in range(_CALLS):
            await _call(process, tenant)
        assert await _read_so_far(process) - before <= _ROWS_PER_CALL_MAX * _CALLS


async def test_a_fold_does_not_compare_each_project_with_each_other(conninfo: str) -> None:
    """Otherwise one tenant's calls in many projects would slow down the admission of all tenants."""
    apart = own_database(conninfo, "plans_of_projects")
    async with running_process(apart, pool_size=1) as process:
        tenant = await make_tenant(process.database, credit=10**9)
        projects = [await another_project(process.database, tenant) for _ in range(100)]
        await run(process.database, "ANALYZE")
        holds = [await held(process, project, 10) for project in projects]
        await asyncio.gather(*(process.ledger.resolve(settlement(hold, 4), hold) for hold in holds))
        ids = (tenant.organization_id, tenant.project_id, tenant.key_id)
        _, _, folds = lock_statements(*([one.int] for one in ids))
        plan = await plan_of(process, folds)
        assert "Delete on unfolded (actual rows=100" in plan
        assert "Rows Removed by Join Filter" not in plan, plan


async def test_everybody_else_is_planned_as_usual(conninfo: str) -> None:
    """Other statements use default planner settings, even on the connection of a hold and settlement."""
    apart = own_database(conninfo, "plans_of_others")
    async with running_process(apart, pool_size=1) as process:
        tenant = await make_tenant(process.database, credit=10**9)
        await _call(process, tenant)
        await process.ledger.mark_unsettled(await held(process, tenant, 10), "nobody knows")
        changed = """
            SELECT name FROM pg_settings
            WHERE (name LIKE 'enable%%' OR name = 'plan_cache_mode') AND setting <> boot_val
        """
        assert await rows(process.database, changed) == []


# Finds the ledger partitions that a plan opens.
OPENED = re.compile(r"\bon (?:public\.)?((?:reservations|resolutions|overages)_\w+)")


async def plan_of(process: Process, bound: BoundStatement) -> str:
    """Runs a prepared statement as the ledger does, rolls it back, and returns its plan."""
    statement, texts = bound
    async with process.database.autocommit() as connection:
        await connection.execute(
            f"PREPARE {statement.name}_plan AS {statement.numbered}".encode(), prepare=False
        )
        try:
            async with connection.transaction(force_rollback=True):
                await connection.execute(PREFER_INDEX_LOOKUPS_IN_TRANSACTION, prepare=False)
                values = sql.SQL(", ").join(sql.Literal((text or b"").decode()) for text in texts)
                cursor = await connection.execute(
                    sql.SQL("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE {} ({})").format(
                        sql.Identifier(f"{statement.name}_plan"), values
                    ),
                    prepare=False,
                )
                return "\n".join(row[0] for row in await cursor.fetchall())
        finally:
            # The driver may have dropped all prepared statements after the rollback.
            with suppress(errors.InvalidSqlStatementName):
                await connection.execute(f"DEALLOCATE {statement.name}_plan".encode())


async def test_a_call_opens_the_partitions_of_its_month_only(conninfo: str) -> None:
    apart = own_database(conninfo, "plans_of_months")
    async with running_process(apart, pool_size=1) as process:
        books = OldBooks(process)
        month = this_month()
        await books.begin(*(month.plus(-number) for number in range(1, 13)))
        tenant = await make_tenant(process.database, credit=10**9)
        holds = [await held(process, tenant, 10) for _ in range(3)]
        plan = await plan_of(process, resolve_statement([settlement(hold, 12) for hold in holds]))
        tables = ("reservations", "resolutions", "overages")
        assert set(OPENED.findall(plan)) == {f"{table}_{month.number}" for table in tables}, plan
        assert "Subplans Removed: 15" in plan
        # The other statements of a hold (locks, clock, folds) read no table that grows with calls.
        ids = (tenant.organization_id, tenant.project_id, tenant.key_id)
        locking = lock_statements(*([one.int] for one in ids))
        for bound in locking:
            assert not OPENED.findall(await plan_of(process, bound))
        for hold in holds:
            await process.ledger.resolve(settlement(hold, 12), hold)
