"""Tests the trial of a hold, which shows without a call whether calls can be admitted."""

import psycopg
import pytest

from tests.support.ledger import Process, make_tenant
from tollkeeper.money.holds.store import LedgerLocked

# The tables that every admission reads or writes, each with the weakest lock that stops it.
_LOCKS = {
    "accounts": "SHARE",
    "project_accounts": "SHARE",
    "reservations": "SHARE",
    "unfolded": "SHARE",
    "processes": "SHARE",
    "projects": "ACCESS EXCLUSIVE",
    "project_keys": "ACCESS EXCLUSIVE",
    "unsettled_marks": "ACCESS EXCLUSIVE",
}


@pytest.mark.parametrize("table", _LOCKS)
async def test_a_table_lock_is_noticed(process: Process, ledger_conninfo: str, table: str) -> None:
    await make_tenant(process.database)
    async with await psycopg.AsyncConnection.connect(ledger_conninfo) as blocker:
        await blocker.execute(f"LOCK TABLE {table} IN {_LOCKS[table]} MODE".encode())
        with pytest.raises(LedgerLocked):
            await process.ledger.try_hold()
        state = process.ledger.hold_writes.state
        assert state.failure == "A table that every call needs is locked."
        await blocker.rollback()
    await process.ledger.try_hold()
    assert process.ledger.hold_writes.state.failure is None


async def test_locked_rows_are_no_reason_to_refuse_all_calls(
    process: Process, ledger_conninfo: str
) -> None:
    await make_tenant(process.database)
    async with await psycopg.AsyncConnection.connect(ledger_conninfo) as blocker:
        for table in _LOCKS:
            await blocker.execute(f"SELECT FROM {table} FOR UPDATE".encode())
        await process.ledger.try_hold()
        assert process.ledger.hold_writes.state.failure is None
