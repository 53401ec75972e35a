"""Tests that the gateway verifies the ledger regularly, in one process at a time."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import psycopg
import pytest
from prometheus_client import REGISTRY

from tests.support.databases import own_database
from tests.support.ledger import Process, held, make_tenant, rows, run, running_process
from tollkeeper.money.unsettled.open_holds import OpenHolds
from tollkeeper.money.verification import store as verification
from tollkeeper.money.verification.metrics import LedgerWatch
from tollkeeper.money.verification.service import RegularVerification
from tollkeeper.money.verification.store import Ages

_AGES = Ages(315, 15)
_WAITING = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'ledger_close_totals'::regclass"


@pytest.fixture
async def apart(shared_conninfo: str) -> AsyncIterator[Process]:
    """Returns a process with its own database, because the tests make its ledger wrong."""
    conninfo = own_database(shared_conninfo, f"regular_{secrets.token_hex(4)}")
    async with running_process(conninfo) as process:
        yield process


async def _found(process: Process) -> list[int]:
    return [
        row[0]
        for row in await rows(process.database, "SELECT differences FROM ledger_verification")
    ]


async def _age(process: Process) -> None:
    """Makes the installation 25 hours old, so that a verification is due."""
    await run(process.database, "UPDATE organizations SET created_at = now() - interval '25 hours'")


async def test_it_runs_when_it_is_due(apart: Process) -> None:
    daily = RegularVerification(apart.database, _AGES)
    await make_tenant(apart.database, credit=100)
    assert not await daily.verify_if_due()
    assert await _found(apart) == [], "the installation is new"
    await _age(apart)
    assert await daily.verify_if_due()
    assert await _found(apart) == [0]
    assert not await daily.verify_if_due()
    await run(
        apart.database,
        "UPDATE ledger_verification SET verified_at = now() - interval '25 hours', differences = %s",
        7,
    )
    assert await daily.verify_if_due()
    assert await _found(apart) == [0]


async def test_it_runs_after_the_clock_was_set_back(apart: Process) -> None:
    """The times in the database are from before, when the clock was a month ahead."""
    daily = RegularVerification(apart.database, _AGES)
    await make_tenant(apart.database, credit=100)
    ahead = "now() + interval '30 days'"
    await run(apart.database, f"UPDATE organizations SET created_at = {ahead}")
    assert await daily.verify_if_due()
    await run(apart.database, f"UPDATE ledger_verification SET verified_at = {ahead}")
    assert await daily.verify_if_due()
    await _age(apart)
    assert not await daily.verify_if_due()


async def test_what_it_finds_is_shown(apart: Process) -> None:
    tenant = await make_tenant(apart.database, credit=100)
    await run(
        apart.database,
        "UPDATE accounts SET overage = overage + 1 WHERE organization_id = %s",
        tenant.organization_id,
    )
    await _age(apart)
    assert await RegularVerification(apart.database, _AGES).verify_if_due()
    assert await _found(apart) == [1]
    await LedgerWatch(apart.database, OpenHolds()).refresh()
    assert REGISTRY.get_sample_value("tollkeeper_ledger_differences") == 1
    assert (REGISTRY.get_sample_value("tollkeeper_ledger_verified_timestamp_seconds") or 0) > 0


async def test_one_process_at_a_time(apart: Process) -> None:
    daily = RegularVerification(apart.database, _AGES)
    await make_tenant(apart.database, credit=100)
    await _age(apart)
    async with (
        apart.database.autocommit() as connection,
        verification.verification_lock(connection) as alone,
    ):
        assert alone
        assert not await daily.verify_if_due()
    assert sorted(await asyncio.gather(daily.verify_if_due(), daily.verify_if_due())) == [
        False,
        True,
    ]


async def test_calls_are_admitted_meanwhile_in_the_smallest_pool(shared_conninfo: str) -> None:
    conninfo = own_database(shared_conninfo, f"regular_{secrets.token_hex(4)}")
    async with running_process(conninfo, pool_size=2) as process:
        tenant = await make_tenant(process.database, credit=100)
        await _age(process)
        async with await psycopg.AsyncConnection.connect(conninfo) as other:
            # The verification waits for this lock. In a large ledger it would run for hours.
            await other.execute("LOCK TABLE ledger_close_totals")
            daily = RegularVerification(process.database, _AGES)
            verifying = asyncio.create_task(daily.verify_if_due())
            async with asyncio.timeout(30):
                while not await (await other.execute(_WAITING)).fetchall():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await held(process, tenant, 1)
        assert await verifying
