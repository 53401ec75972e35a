"""Tests holds and resolutions on a real database, with two concurrent processes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import LiteralString, TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.support.ledger import (
    LIMITS,
    Balance,
    LedgerTenant,
    Process,
    another_project,
    balance_of,
    count,
    fold,
    grant,
    held,
    hold_of,
    make_tenant,
    release,
    rows,
    run,
    settlement,
)
from tests.support.proof import Proof
from tollkeeper.core.access import KeyStatus, OrganizationId
from tollkeeper.core.errors import Unavailable
from tollkeeper.database.database import Database
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.caps.service import Caps
from tollkeeper.money.holds import group_writer
from tollkeeper.money.holds import service as holds
from tollkeeper.money.holds.rule import Decision, Refusal
from tollkeeper.money.settlement import store as resolutions

T = TypeVar("T")


async def at_once(workers: int, work: list[Callable[[], Awaitable[T]]]) -> list[T]:
    """Runs the jobs with `workers` workers, and returns the results in the order of the jobs."""
    slots = asyncio.Semaphore(workers)

    async def one(job: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await job()

    return await asyncio.gather(*[one(job) for job in work])


async def check_exact_admission(
    process: Process, other: Process, tenant: LedgerTenant, *, calls: int, fit: int
) -> None:
    """Checks that credit for `fit` calls admits exactly `fit` of `calls` concurrent calls."""
    amount = 7
    await grant(process.database, tenant, fit * amount)
    decisions = await asyncio.gather(
        *[
            (process, other)[number % 2].ledger.hold(hold_of(tenant, amount))
            for number in range(calls)
        ]
    )
    refusals = [found.refusal for found in decisions]
    assert refusals.count(None) == fit
    assert refusals.count(Refusal.CREDIT) == calls - fit
    assert await balance_of(process, tenant) == Balance(0, fit * amount, 0, 0, 0)
    assert (
        await count(
            process.database,
            "SELECT count(*) FROM reservations WHERE organization_id = %s",
            tenant.organization_id,
        )
        == fit
    )


async def test_credit_for_ten_admits_ten(
    process: Process, other_process: Process, proof: Proof
) -> None:
    for _ in range(proof.size(1, 40)):
        tenant = await make_tenant(process.database)
        await check_exact_admission(process, other_process, tenant, calls=500, fit=10)
    proof.count("calls at once for credit of ten", proof.size(1, 40) * 500)


async def check_resolves_once(
    process: Process, other: Process, tenant: LedgerTenant, many: int
) -> None:
    """Resolves each reservation twice, with different costs and partly in another process. Checks that
    exactly one resolution counts."""
    await grant(process.database, tenant, 10 * many)
    holds = [await held(process, tenant, 10) for _ in range(many)]
    sent = [
        (hold, cost, ledger)
        for number, hold in enumerate(holds)
        for cost, ledger in (
            (number % 13, process.ledger),
            ((number + 5) % 13, (process, other)[number % 2].ledger),
        )
    ]
    results = await at_once(
        64,
        [
            lambda hold=hold, cost=cost, ledger=ledger: ledger.resolve(settlement(hold, cost))  # type: ignore[misc]
            for hold, cost, ledger in sent
        ],
    )
    assert results.count(True) == many
    # The database contains the resolutions for which `resolve` returned True.
    settled = dict(
        await rows(
            process.database,
            "SELECT reservation_id, prompt + completion FROM resolutions WHERE organization_id = %s",
            tenant.organization_id,
        )
    )
    told = {hold.id: cost for (hold, cost, _), first in zip(sent, results, strict=True) if first}
    assert settled == told
    spent = sum(told.values())
    overage = sum(max(0, cost - 10) for cost in told.values())
    expected = Balance(10 * many - spent, 0, 0, spent, overage)
    assert await balance_of(process, tenant) == expected


async def test_every_resolve_sent_twice_resolves_once(
    process: Process, other_process: Process, proof: Proof
) -> None:
    many = proof.size(500, 5_000)
    tenant = await make_tenant(process.database)
    await check_resolves_once(process, other_process, tenant, many)
    proof.count("reservations resolved twice by 64 workers", many)


async def test_twins_in_one_batch(process: Process) -> None:
    """One statement contains three resolutions of the same reservation. Only the first is written."""
    tenant = await make_tenant(process.database, credit=100)
    hold = await held(process, tenant, 10)
    results = await asyncio.gather(
        process.ledger.resolve(settlement(hold, 4)),
        process.ledger.resolve(release(hold)),
        process.ledger.resolve(settlement(hold, 10)),
    )
    assert list(results) == [True, False, False]
    assert await balance_of(process, tenant) == Balance(96, 0, 0, 4, 0)


async def check_overage(process: Process, tenant: LedgerTenant) -> None:
    await grant(process.database, tenant, 10)
    hold = await held(process, tenant, 10)
    assert await process.ledger.resolve(settlement(hold, 17))
    [row] = await rows(
        process.database,
        """
        SELECT d.settled, d.released, o.amount FROM resolutions d
        JOIN overages o USING (organization_id, reservation_id) WHERE d.organization_id = %s
        """,
        tenant.organization_id,
    )
    assert row == (10, 0, 7)
    for amount in (0, 1):
        refused = await process.ledger.hold(hold_of(tenant, amount))
        assert refused.refusal is Refusal.CREDIT
        assert (refused.available_picousd, refused.spent_picousd) == (-7, 17)
    assert await balance_of(process, tenant) == Balance(-7, 0, 0, 17, 7)


async def test_usage_above_the_hold_is_overage(process: Process) -> None:
    tenant = await make_tenant(process.database)
    await check_overage(process, tenant)
    await grant(process.database, tenant, 8)
    assert (await process.ledger.hold(hold_of(tenant, 1))).refusal is None


async def test_what_was_never_held_is_not_resolved(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    hold = hold_of(tenant, 10)
    assert not await process.ledger.resolve(settlement(hold, 5))
    assert not await process.ledger.resolve(release(hold), hold)
    assert await balance_of(process, tenant) == Balance(100, 0, 0, 0, 0)


async def test_live_holds_are_the_concurrency(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    await run(
        process.database,
        "UPDATE project_accounts SET concurrency = 2 WHERE project_id = %s",
        tenant.project_id,
    )
    first = await held(process, tenant, 1)
    second = await held(process, tenant, 1)
    assert (await process.ledger.hold(hold_of(tenant, 1))).refusal is Refusal.CONCURRENCY
    await process.ledger.resolve(release(first))
    await held(process, tenant, 1)
    await process.ledger.mark_unsettled(second, "nobody knows")
    await held(process, tenant, 1)
    assert (await process.ledger.hold(hold_of(tenant, 1))).refusal is Refusal.CONCURRENCY


async def test_caps_hold_across_projects_and_processes(
    process: Process, other_process: Process
) -> None:
    tenant = await make_tenant(process.database, credit=10_000)
    second = await another_project(process.database, tenant)
    caps = Caps(process.database, LIMITS)
    await caps.cap_set(tenant.organization_id, 100, CapPeriod.TOTAL)
    await caps.cap_set(tenant.organization_id, 35, CapPeriod.MONTH, tenant.project_id)
    decisions = await asyncio.gather(
        *[
            (process, other_process)[number % 2].ledger.hold(
                hold_of((tenant, second)[number // 2 % 2], 5)
            )
            for number in range(200)
        ]
    )
    of_first = [decisions[at].refusal for at in range(200) if at // 2 % 2 == 0]
    of_second = [decisions[at].refusal for at in range(200) if at // 2 % 2 == 1]
    assert of_first.count(None) == 7
    assert of_first.count(None) + of_second.count(None) == 20
    assert set(of_second) == {None, Refusal.ORGANIZATION_CAP}


async def test_one_bad_organization_fails_alone(process: Process) -> None:
    """One batch contains an unknown organization, an organization whose account cannot be written, a
    project of another organization, and a reservation that already exists."""
    good = await make_tenant(process.database, credit=100)
    broken = await make_tenant(process.database, credit=100)
    unknown = LedgerTenant(OrganizationId(uuid4()), good.project_id, good.key_id)
    stranger = replace(good, project_id=broken.project_id)
    twice = await held(process, good, 1)
    # Releases more than is held, so the account's constraints reject the next write.
    spoil = """
        INSERT INTO unfolded (organization_id, reservation_id, kind, project_id, api_key_id, day,
            hold, settled, overage)
        VALUES (%s, gen_random_uuid(), 'resolved', %s, gen_random_uuid(), 0, 5, 0, 0)
    """
    await run(process.database, spoil, broken.organization_id, broken.project_id)
    results = await asyncio.gather(
        *[
            process.ledger.hold(hold)
            for hold in (
                hold_of(unknown, 1),
                hold_of(good, 2),
                twice,
                hold_of(broken, 3),
                hold_of(stranger, 3),
                hold_of(good, 4),
            )
        ],
        return_exceptions=True,
    )
    refused = Decision(Refusal.KEY_NOT_ACTIVE)
    assert [results[at] for at in (0, 1, 4, 5)] == [refused, Decision(), refused, Decision()]
    assert isinstance(results[2], psycopg.errors.UniqueViolation)
    assert isinstance(results[3], psycopg.errors.CheckViolation)
    assert await balance_of(process, good) == Balance(93, 7, 0, 0, 0)
    await run(
        process.database, "DELETE FROM unfolded WHERE organization_id = %s", broken.organization_id
    )


async def test_one_bad_settlement_fails_alone(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    holds = [await held(process, tenant, 10) for _ in range(3)]
    results = await asyncio.gather(
        process.ledger.resolve(settlement(holds[0], 4)),
        process.ledger.resolve(settlement(holds[1], -4)),
        process.ledger.resolve(settlement(holds[2], 6)),
        return_exceptions=True,
    )
    assert (results[0], results[2]) == (True, True)
    assert isinstance(results[1], Exception)
    assert await balance_of(process, tenant) == Balance(80, 10, 0, 10, 0)


async def test_a_locked_organization_keeps_nobody_else_waiting(
    process: Process, ledger_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "_LOCK_WAIT_S", 0.02)
    stuck = await make_tenant(process.database, credit=100)
    free = await make_tenant(process.database, credit=1000)
    async with ledger_database.transaction() as connection:
        await connection.execute(
            "SELECT FROM accounts WHERE organization_id = %s FOR UPDATE", (stuck.organization_id,)
        )
        waiting = [
            asyncio.ensure_future(process.ledger.hold(hold_of(stuck, number)))
            for number in range(1, 4)
        ]
        for _ in range(20):
            assert await process.ledger.hold(hold_of(free, 1)) == Decision()
        late = asyncio.ensure_future(process.ledger.hold(hold_of(stuck, 4)))
        assert await process.ledger.hold(hold_of(free, 1)) == Decision()
        assert not any(one.done() for one in (*waiting, late))
    assert await asyncio.gather(*waiting, late) == [Decision()] * 4
    assert await balance_of(process, stuck) == Balance(90, 10, 0, 0, 0)


async def test_a_key_that_expires_is_refused_by_the_servers_clock(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=10)
    await held(process, tenant, 1)
    await run(
        process.database,
        "UPDATE project_keys SET expires_at = clock_timestamp() WHERE id = %s",
        tenant.key_id,
    )
    refused = await process.ledger.hold(hold_of(tenant, 1))
    assert refused == Decision(Refusal.KEY_NOT_ACTIVE, key_status=KeyStatus.EXPIRED)
    await fold(process, tenant)


async def test_a_full_queue_is_refused_and_leaves_nothing(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await make_tenant(process.database, credit=100)
    monkeypatch.setattr(group_writer, "BATCH_MAX", 1)
    monkeypatch.setattr(process.ledger._holds._common, "_queued_max", 3)
    results = await asyncio.gather(
        *[process.ledger.hold(hold_of(tenant, 1)) for _ in range(5)], return_exceptions=True
    )
    assert sum(isinstance(found, Unavailable) for found in results) == 2
    assert await balance_of(process, tenant) == Balance(97, 3, 0, 0, 0)


@pytest.mark.parametrize("rarely", [False, True], ids=["call", "operator"])
async def test_a_resolution_that_waits_for_another_one_counts_once(
    process: Process, other_process: Process, rarely: bool
) -> None:
    """A settlement is sent again before the first one is committed, as if its reply had been lost."""
    tenant = await make_tenant(process.database, credit=100)
    first, second = await held(process, tenant, 30), await held(process, tenant, 20)
    both = [settlement(first, 7), settlement(second, 5)]

    async def again() -> list[UUID]:
        if rarely:
            async with other_process.database.transaction() as connection:
                return list(await resolutions.resolve(connection, both))
        done = await asyncio.gather(*map(other_process.ledger.resolve, both))
        return [one.reservation_id for one, is_done in zip(both, done, strict=True) if is_done]

    async with process.database.transaction() as connection:
        assert await resolutions.resolve(connection, both[:1]) == {first.id}
        waiting = asyncio.ensure_future(again())
        async with asyncio.timeout(30):
            while not await rows(process.database, _WAITING):  # noqa: ASYNC110 - it polls the server
                await asyncio.sleep(0.01)
    assert await waiting == [second.id]
    assert await balance_of(process, tenant) == Balance(88, 0, 0, 12, 0)


_WAITING: LiteralString = """
    SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
