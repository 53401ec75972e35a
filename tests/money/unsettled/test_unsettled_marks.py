"""Tests marks and later resolutions in every order, with folds of the account between them."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from tests.support.ledger import (
    Balance,
    Process,
    balance_of,
    differences,
    fold,
    held,
    make_tenant,
    release,
    rows,
    settlement,
)
from tests.support.proof import Proof
from tollkeeper.database.account_locks import lock_account_rows
from tollkeeper.database.database import Connection, Database
from tollkeeper.money.holds.values import Ending, Hold, Mark, Resolution
from tollkeeper.money.settlement import store as resolutions

# The ways in which a call with a hold of 10 ends, and the resulting balance of a credit of 100.
ENDINGS = {
    "less": Balance(96, 0, 0, 4, 0),
    "equal": Balance(90, 0, 0, 10, 0),
    "more": Balance(83, 0, 0, 17, 7),
    "released": Balance(100, 0, 0, 0, 0),
}


def ending(hold: Hold, name: str) -> Resolution:
    costs = {"less": 4, "equal": 10, "more": 17}
    return release(hold) if name == "released" else settlement(hold, costs[name])


async def check_sequence(process: Process, name: str, steps: tuple[str, ...]) -> None:
    """Runs the steps on one hold, and checks the result of each step and the final balance."""
    tenant = await make_tenant(process.database, credit=100)
    hold = await held(process, tenant, 10)
    resolved = marked = False
    for step in steps:
        match step:
            case "mark":
                done = await process.ledger.mark_unsettled(hold, "nobody knows")
                assert done == (not resolved and not marked)
                marked = marked or not resolved
            case "resolve":
                assert await process.ledger.resolve(ending(hold, name)) == (not resolved)
                resolved = True
            case "fold":
                await fold(process, tenant)
    expected = Balance(90, 10, 0, 0, 0)
    if resolved:
        expected = ENDINGS[name]
    elif marked:
        expected = Balance(90, 0, 10, 0, 0)
    assert await balance_of(process, tenant) == expected
    [[live]] = await rows(
        process.database,
        "SELECT live_holds FROM project_accounts WHERE project_id = %s",
        tenant.project_id,
    )
    assert live == (0 if resolved or marked else 1)


def sequences() -> list[tuple[str, ...]]:
    """Returns every order of up to two marks and two resolutions, with or without a fold after each."""
    found = set()
    for marks, resolves in itertools.product(range(3), repeat=2):
        for order in itertools.permutations(["mark"] * marks + ["resolve"] * resolves):
            for folds in itertools.product((False, True), repeat=len(order)):
                steps = [
                    step
                    for one, folded in zip(order, folds, strict=True)
                    for step in ((one, "fold") if folded else (one,))
                ]
                found.add(tuple(steps))
    return sorted(found)


@pytest.mark.parametrize("name", ENDINGS)
async def test_every_order_of_marks_resolutions_and_folds(
    process: Process, proof: Proof, name: str
) -> None:
    run = sequences()
    if not proof.long:
        offset = list(ENDINGS).index(name)
        run = run[offset :: 2 * len(ENDINGS)]
    for steps in run:
        try:
            await check_sequence(process, name, steps)
        except AssertionError as exc:
            raise AssertionError(f"{name}: {steps}") from exc
    proof.count("orders of marks, resolutions and folds", len(run))


@asynccontextmanager
async def marking(database: Database, hold: Hold) -> AsyncIterator[Connection]:
    """Writes a mark, and commits it when the block ends."""
    async with database.transaction() as connection:
        await lock_account_rows(connection, hold.organization_id)
        await resolutions.mark_unsettled(connection, [Mark(hold.organization_id, hold.id, "test")])
        yield connection


@asynccontextmanager
async def resolving(database: Database, resolution: Resolution) -> AsyncIterator[Connection]:
    """Writes a resolution, and commits it when the block ends."""
    async with database.transaction() as connection:
        assert await resolutions.resolve(connection, [resolution]) == {resolution.reservation_id}
        yield connection


async def test_a_locked_account_delays_no_other_organization(process: Process) -> None:
    """An operator's command can lock an account for a minute, for example `cap reset`."""
    tenants = [await make_tenant(process.database, credit=100) for _ in range(2)]
    free, locked = sorted(tenants, key=lambda tenant: tenant.organization_id)
    holds = [await held(process, tenant, 10) for tenant in (free, locked)]
    async with process.database.transaction() as connection:
        await lock_account_rows(connection, locked.organization_id)
        marked, waiting = [process.ledger.mark_unsettled(hold, "nobody knows") for hold in holds]
        async with asyncio.timeout(5):
            assert await marked
            assert await balance_of(process, free) == Balance(90, 0, 10, 0, 0)
        assert not waiting.done()
    assert await waiting
    assert await balance_of(process, locked) == Balance(90, 0, 10, 0, 0)


async def test_a_reason_that_postgresql_cannot_store_is_no_obstacle(process: Process) -> None:
    """A reason may quote the backend, for example the type of an image. Without the mark, the hold would
    stay open until the process ends."""
    tenant = await make_tenant(process.database, credit=100)
    hold = await held(process, tenant, 10)
    assert await process.ledger.mark_unsettled(hold, "The model answered with \0image.")
    assert process.ledger.open_holds == 0
    assert await balance_of(process, tenant) == Balance(90, 0, 10, 0, 0)


async def test_the_number_of_marks_does_not_change_the_number_of_statements(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While marks are written, the accounts of all their organizations are locked. So many failed calls
    of one organization must not delay the calls of another."""
    tenants = [await make_tenant(process.database, credit=100) for _ in range(2)]
    holds = [await held(process, tenant, 1) for tenant in tenants for _ in range(20)]
    sent = []
    execute, this_task = psycopg.AsyncCursor.execute, asyncio.current_task()

    async def noting(cursor: psycopg.AsyncCursor[Any], *args: Any, **options: Any) -> Any:
        # Other tasks are the background work of gateways that other tests started.
        if asyncio.current_task() is this_task:
            sent.append(args[0])
        return await execute(cursor, *args, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", noting)
    marks = [Mark(hold.organization_id, hold.id, "nobody knows") for hold in holds]
    assert set(await process.store.mark_all([*marks, marks[0]])) == {
        Ending.DONE,
        Ending.ALREADY_ENDED,
    }
    assert 1 <= len(sent) <= 3
    for tenant in tenants:
        assert await balance_of(process, tenant) == Balance(80, 0, 20, 0, 0)


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.parametrize("folded", [False, True])
async def test_a_mark_while_a_resolution_is_being_committed(
    process: Process, name: str, folded: bool
) -> None:
    """The mark cannot see the resolution, and is folded before the resolution or together with it."""
    tenant = await make_tenant(process.database, credit=100)
    hold = await held(process, tenant, 10)
    async with resolving(process.database, ending(hold, name)):
        assert await process.ledger.mark_unsettled(hold, "nobody knows")
        if folded:
            assert await balance_of(process, tenant) == Balance(90, 0, 10, 0, 0)
            assert await differences(process.database) == []
    assert await differences(process.database) == []
    assert await balance_of(process, tenant) == ENDINGS[name]


@pytest.mark.parametrize("name", ENDINGS)
async def test_a_resolution_while_a_mark_is_being_committed(process: Process, name: str) -> None:
    tenant = await make_tenant(process.database, credit=100)
    hold = await held(process, tenant, 10)
    async with marking(process.database, hold):
        assert await process.ledger.resolve(ending(hold, name))
        assert await differences(process.database) == []
    assert await differences(process.database) == []
    assert await balance_of(process, tenant) == ENDINGS[name]


async def test_what_is_rolled_back_was_never_there(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    hold = await held(process, tenant, 10)

    async def fail_in_the_midst() -> None:
        async with (
            resolving(process.database, settlement(hold, 4)),
            marking(process.database, hold),
        ):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_in_the_midst()
    assert await balance_of(process, tenant) == Balance(90, 10, 0, 0, 0)
    assert await process.ledger.resolve(settlement(hold, 10))


async def test_unsettled_holds_stay_blocked_until_somebody_knows(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=10)
    hold = await held(process, tenant, 10)
    await process.ledger.mark_unsettled(hold, "nobody knows")
    refused = await process.ledger.hold(hold)
    assert (refused.available_picousd, refused.held_picousd) == (0, 10)
    # A later retry would not help, because no running call can release credit.
    assert refused.retry_after_s is None
    await process.ledger.resolve(release(hold))
    await held(process, tenant, 10)


async def test_a_fold_waits_for_a_mark_that_is_being_committed(process: Process) -> None:
    """Otherwise the resolution and the mark would both subtract the hold from the held amount."""
    tenant = await make_tenant(process.database, credit=100)
    hold = await held(process, tenant, 10)
    async with marking(process.database, hold):
        assert await process.ledger.resolve(settlement(hold, 4))
        folding = asyncio.ensure_future(fold(process, tenant))
        await asyncio.sleep(0.2)
        assert not folding.done()
    await folding
    assert await balance_of(process, tenant) == ENDINGS["less"]
