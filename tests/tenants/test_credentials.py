"""Tests that every process refuses a key as soon as its revocation is acknowledged."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from tests.support.ledger import LedgerTenant, Process, held, hold_of, make_tenant, rows, settlement
from tests.support.proof import Proof
from tollkeeper.core.access import KeyStatus
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.money.holds.rule import Decision, Refusal
from tollkeeper.tenants.idempotency import Idempotency
from tollkeeper.tenants.organizations import Organizations
from tollkeeper.tenants.project_keys import ProjectKeys
from tollkeeper.tenants.projects import Projects

Change: TypeAlias = Callable[[Process, LedgerTenant], Awaitable[Any]]


def keys_of(process: Process) -> ProjectKeys:
    idempotency = Idempotency(Vault(b"0" * 32), unix_now)
    return ProjectKeys(process.database, idempotency, unix_now, ())


async def revoke(process: Process, tenant: LedgerTenant) -> None:
    await keys_of(process).project_key_revoke(tenant.key_id)


async def suspend(process: Process, tenant: LedgerTenant) -> None:
    await keys_of(process).project_key_suspend(tenant.key_id)


async def archive(process: Process, tenant: LedgerTenant) -> None:
    await Projects(process.database, unix_now).project_archive(
        tenant.organization_id, tenant.project_id
    )


async def archive_organization(process: Process, tenant: LedgerTenant) -> None:
    organizations = Organizations(process.database, unix_now)
    await organizations.organization_archive(tenant.organization_id)


CHANGES = {
    "revoke": (revoke, Decision(Refusal.KEY_NOT_ACTIVE, key_status=KeyStatus.REVOKED)),
    "suspend": (suspend, Decision(Refusal.KEY_NOT_ACTIVE, key_status=KeyStatus.SUSPENDED)),
    "archive": (archive, Decision(Refusal.PROJECT_ARCHIVED)),
    "archive_organization": (archive_organization, Decision(Refusal.PROJECT_ARCHIVED)),
}


async def check_no_admission_after(
    process: Process, other: Process, change: Change, refused: Decision
) -> int:
    """Makes the change while both processes create holds, and checks that no later hold is admitted.
    Returns the number of admitted holds."""
    tenant = await make_tenant(process.database, credit=10_000)
    amid = asyncio.Event()
    acknowledged = False
    started_after: list[Decision] = []
    admitted = 0

    async def caller(ledger_of: Process) -> None:
        nonlocal admitted
        for _ in range(10):
            after = acknowledged
            decision = await ledger_of.ledger.hold(hold_of(tenant, 1))
            admitted += decision.refusal is None
            if admitted == 20:
                amid.set()
            if after:
                started_after.append(decision)

    callers = [asyncio.ensure_future(caller((process, other)[at % 2])) for at in range(20)]
    enough = asyncio.ensure_future(amid.wait())
    await asyncio.wait([enough, *callers], return_when=asyncio.FIRST_COMPLETED)
    await change(process, tenant)
    acknowledged = True
    [[acknowledged_at]] = await rows(process.database, "SELECT clock_timestamp()")
    await asyncio.gather(*callers)
    started_after += [await one.ledger.hold(hold_of(tenant, 1)) for one in (process, other)]

    assert started_after == [refused] * len(started_after)
    # A hold's time is read under the lock that the change takes too. So no hold can be later.
    [[newest, number]] = await rows(
        process.database,
        "SELECT max(held_at), count(*) FROM reservations WHERE organization_id = %s",
        tenant.organization_id,
    )
    assert newest < acknowledged_at
    assert number == admitted
    return admitted


@pytest.mark.parametrize("name", CHANGES)
async def test_no_admission_after_the_change_is_acknowledged(
    process: Process, other_process: Process, proof: Proof, name: str
) -> None:
    change, refused = CHANGES[name]
    rounds = proof.size(1, 50)
    for _ in range(rounds):
        await check_no_admission_after(process, other_process, change, refused)
    proof.count("changes of credentials amid 200 holds", rounds)


async def test_a_running_call_ends_properly_after_its_key_is_gone(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    first, second = [await held(process, tenant, 10) for _ in range(2)]
    await revoke(process, tenant)
    assert await process.ledger.resolve(settlement(first, 4), first)
    await archive(process, tenant)
    assert await process.ledger.resolve(settlement(second, 17), second)


async def test_a_suspension_can_be_lifted(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    await suspend(process, tenant)
    assert (await process.ledger.hold(hold_of(tenant, 1))).key_status is KeyStatus.SUSPENDED
    await keys_of(process).project_key_unsuspend(tenant.key_id)
    await held(process, tenant, 1)
