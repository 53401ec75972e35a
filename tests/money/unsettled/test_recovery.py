"""Tests that recovery marks the holds of dead processes as unsettled, and never changes holds of live
processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.ledger import (
    Balance,
    Process,
    balance_of,
    count,
    held,
    make_process,
    make_tenant,
    register,
    release,
    rows,
    run,
    settlement,
)
from tests.support.proof import Proof
from tollkeeper.core.errors import StateConflict, Unavailable
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.core.views import ReservationStatus
from tollkeeper.database import processes
from tollkeeper.database.database import Database
from tollkeeper.money.holds.values import Hold
from tollkeeper.money.unsettled.recovery import Lease, LeasedHolds, OwnHolds, Recovered, Recovery
from tollkeeper.money.unsettled.service import Reconciliation
from tollkeeper.money.verification.store import Ages
from tollkeeper.tenants.audit.rule import Actor, ActorKind
from tollkeeper.tenants.audit.service import Audit, acting_as

# The duration of leases in these tests. It is short, because recovery watches silent processes.
LEASE_S = 0.8


@pytest.fixture(autouse=True)
async def nobody_else(ledger_database: Database) -> None:
    """Marks the holds of earlier tests' processes as unsettled and removes these processes."""
    await Recovery(ledger_database, 0).ledger_recover()
    assert not await rows(ledger_database, "SELECT FROM processes")


@asynccontextmanager
async def alive(process: Process) -> AsyncIterator[None]:
    """Sends heartbeats of the process until the block ends."""

    async def beat() -> None:
        while True:
            await register(process)
            await asyncio.sleep(0.02)

    beating = asyncio.ensure_future(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def fall_silent(process: Process, since_s: float) -> None:
    """Dates the last heartbeat of the process `since_s` seconds back; a negative value dates it ahead."""
    await run(
        process.database,
        "UPDATE processes SET heartbeat_at = heartbeat_at - make_interval(secs => %s) WHERE id = %s",
        since_s,
        process.id,
    )


def dead_process(process: Process) -> Process:
    """Returns a new process on the same connections. It sends no heartbeats, except with `alive`."""
    return make_process(process.database)


async def test_holds_of_a_dead_process_become_unsettled(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    dead = dead_process(process)
    lost, resolved, marked = [await held(dead, tenant, 10) for _ in range(3)]
    await dead.ledger.resolve(settlement(resolved, 4))
    await dead.ledger.mark_unsettled(marked, "known to be unknown")
    recovery, ada = Recovery(process.database, 0), Actor(ActorKind.CONSOLE, "Ada (sub-1)")
    with acting_as(ada):
        assert await recovery.ledger_recover() == Recovered(processes=1, reservations=1)
        assert await balance_of(process, tenant) == Balance(76, 0, 20, 4, 0)
        assert await recovery.ledger_recover() == Recovered(0, 0)
    audit = Audit(process.database, unix_now, retention_days=1)
    [entry] = (await audit.audit_list(organization_id=tenant.organization_id)).entries
    assert (entry.actor, entry.change.operation) == (ada, "ledger_recover")
    assert entry.change.after is not None
    assert entry.change.after["unsettled_reservations"] == 1
    # A later settlement is accepted exactly once.
    assert await process.ledger.resolve(settlement(lost, 3))
    assert not await process.ledger.resolve(release(lost))
    assert await balance_of(process, tenant) == Balance(83, 0, 10, 7, 0)


async def test_a_hold_whose_end_was_lost_becomes_unsettled(process: Process) -> None:
    """After a failover to a standby that lacks the last commits, the process that settled the call is
    still alive, but would never settle it again."""
    tenant = await make_tenant(process.database, credit=100)
    living = dead_process(process)
    running = await held(living, tenant, 10)
    # The process has settled this hold, but the database has lost the settlement.
    lost = await held(living, tenant, 20)
    living.ledger._open.discard(lost.id.int)
    own = OwnHolds(living.id, living.ledger.is_open)
    recovery = Recovery(process.database, LEASE_S, own=own)
    async with alive(living):
        # The hold may have been committed just now, so only the second sweep marks it.
        assert await recovery.ledger_recover() == Recovered(0, 0)
        assert await recovery.ledger_recover() == Recovered(0, 0, forgotten=1)
        assert await recovery.ledger_recover() == Recovered(0, 0)
    assert await balance_of(process, tenant) == Balance(70, 10, 20, 0, 0)
    # A process marks only its own forgotten holds.
    another = OwnHolds(process.id, lambda _reservation_id: False)
    elsewhere = Recovery(process.database, LEASE_S, own=another)
    async with alive(living):
        for _ in range(2):
            assert await elsewhere.ledger_recover() == Recovered(0, 0)
    await living.ledger.resolve(release(running))


async def test_the_lease_of_a_process_that_has_just_died_is_told(process: Process) -> None:
    """Its holds are not marked yet, and the operator sees when its lease ends."""
    tenant = await make_tenant(process.database, credit=100)
    dead = dead_process(process)
    await held(dead, tenant, 10)
    recovery = Recovery(process.database, 1000)
    assert await recovery.ledger_recover() == Recovered(0, 0)
    await fall_silent(dead, 700)
    leased = await recovery.leased_holds()
    assert (leased.processes, leased.reservations) == (1, 1)
    assert leased.lease_ends_in_s is not None
    assert 200 < leased.lease_ends_in_s <= 300
    await fall_silent(dead, 400)
    assert await recovery.leased_holds() == LeasedHolds(0, 0, None)


async def test_a_hold_registers_its_process(process: Process) -> None:
    """So recovery finds a process that dies before its first heartbeat."""
    tenant = await make_tenant(process.database, credit=100)
    dead = dead_process(process)
    await held(dead, tenant, 10)
    assert await count(process.database, "SELECT count(*) FROM processes WHERE id = %s", dead.id)
    assert await Recovery(process.database, 0).ledger_recover() == Recovered(1, 1)


async def check_live_process_is_spared(process: Process) -> None:
    """Checks that recovery spares a live process after an outage, when no process has a recent heartbeat,
    because a live process soon sends a heartbeat."""
    tenant = await make_tenant(process.database, credit=100)
    living, dead = dead_process(process), dead_process(process)
    kept = await held(living, tenant, 10)
    await held(dead, tenant, 20)
    for one in (living, dead):
        await fall_silent(one, 3600)
    sweep = asyncio.ensure_future(Recovery(process.database, LEASE_S).ledger_recover())
    await asyncio.sleep(0.1)  # the sweep has found both silent by now
    async with alive(living):
        found = await sweep
    assert found == Recovered(processes=1, reservations=1)
    assert await balance_of(process, tenant) == Balance(70, 10, 20, 0, 0)
    await living.ledger.resolve(release(kept))


async def test_a_live_process_is_spared_after_an_outage(process: Process) -> None:
    await check_live_process_is_spared(process)


async def test_a_process_that_makes_holds_lives(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    living = dead_process(process)
    await held(living, tenant, 1)
    await fall_silent(living, 3600)
    sweep = asyncio.ensure_future(Recovery(process.database, LEASE_S).ledger_recover())
    await asyncio.sleep(0.05)
    await held(living, tenant, 1)
    assert await sweep == Recovered(0, 0)


async def test_a_hold_during_the_sweep_keeps_its_process_on_the_list(process: Process) -> None:
    """Recovery has not seen the new hold. If recovery removed the process, the hold would belong to an
    unregistered process."""
    tenant = await make_tenant(process.database, credit=100)
    slow = dead_process(process)
    await held(slow, tenant, 1)
    async with process.database.autocommit() as connection:
        [(process_id, heartbeat_at)] = (await processes.find_silent(connection, lease_s=0)).items()
        await held(slow, tenant, 2)
        assert not await processes.forget_dead(connection, process_id, heartbeat_at)
    assert await Recovery(process.database, 0).ledger_recover() == Recovered(1, 2)
    # The process was alive, and its next hold registers it again.
    await held(slow, tenant, 3)
    assert await Recovery(process.database, 0).ledger_recover() == Recovered(1, 1)


@pytest.mark.parametrize("jump_s", [-86_400.0, -3600.0, 3600.0])
async def test_a_jump_of_the_clock_hides_nobody(process: Process, jump_s: float) -> None:
    """After a jump of the clock the last heartbeat is in the distant past or in the future."""
    tenant = await make_tenant(process.database, credit=100)
    living, dead = dead_process(process), dead_process(process)
    kept = await held(living, tenant, 10)
    await held(dead, tenant, 20)
    for one in (living, dead):
        await fall_silent(one, jump_s)
    async with alive(living):
        found = await Recovery(process.database, LEASE_S).ledger_recover()
    assert found == Recovered(1, 1)
    await living.ledger.resolve(release(kept))


async def move_back(process: Process, hold: Hold, by_s: float) -> None:
    """Dates the hold `by_s` seconds back, as if the clock had been set forward since then."""
    await run(
        process.database,
        "UPDATE reservations SET held_at = held_at - make_interval(secs => %s) WHERE id = %s",
        by_s,
        hold.id,
    )


@pytest.mark.parametrize("age_s", [1, 1799, 1801, 20_000, 80_000, 93_600, 400 * 86_400])
async def test_old_holds_are_found(process: Process, age_s: int) -> None:
    tenant = await make_tenant(process.database, credit=100)
    dead = dead_process(process)
    hold = await held(dead, tenant, 10)
    await move_back(process, hold, age_s)
    assert await Recovery(process.database, 0).ledger_recover() == Recovered(1, 1)


async def check_clock_jump(process: Process, jump_s: float) -> None:
    """Checks the recovery after the clock jumped while calls ran and one of two processes then died."""
    tenant = await make_tenant(process.database, credit=100)
    living, dead = dead_process(process), dead_process(process)
    kept, lost = await held(living, tenant, 10), await held(dead, tenant, 20)
    settled = await held(dead, tenant, 30)
    await dead.ledger.resolve(settlement(settled, 4))
    for hold in (kept, lost, settled):
        await move_back(process, hold, jump_s)
    # The process creates a hold after the jump, too.
    recent = await held(dead, tenant, 5)
    async with alive(living):
        await asyncio.sleep(LEASE_S)
        assert await Recovery(process.database, LEASE_S).ledger_recover() == Recovered(1, 2)
    assert await balance_of(process, tenant) == Balance(61, 10, 25, 4, 0)
    for hold in (lost, recent):
        assert await process.ledger.resolve(release(hold))
    await living.ledger.resolve(release(kept))


@pytest.mark.parametrize("jump_s", [26 * 3600.0, 400 * 86_400.0, -26 * 3600.0])
async def test_a_hold_from_before_a_jump_of_the_clock_is_found(
    process: Process, jump_s: float
) -> None:
    await check_clock_jump(process, jump_s)


async def test_an_operator_resolves_a_hold_from_before_a_jump(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    hold = await held(dead_process(process), tenant, 10)
    await move_back(process, hold, 26 * 3600)
    reconciliation = Reconciliation(process.database, Ages(300 + LEASE_S, LEASE_S))
    with pytest.raises(StateConflict, match="is held"):
        await reconciliation.ledger_resolve(hold.id, settle_picousd=None)
    await Recovery(process.database, 0).ledger_recover()
    entry = await reconciliation.ledger_resolve(hold.id, settle_picousd=None)
    assert entry.status is ReservationStatus.RELEASED


@pytest.mark.parametrize("age_s", [0, 93_600])
async def test_a_hold_of_an_unregistered_process_is_found(process: Process, age_s: int) -> None:
    tenant = await make_tenant(process.database, credit=100)
    gone, living = dead_process(process), dead_process(process)
    lost, kept = await held(gone, tenant, 10), await held(living, tenant, 20)
    await move_back(process, lost, age_s)
    await move_back(process, kept, age_s)
    await run(process.database, "DELETE FROM processes WHERE id = %s", gone.id)
    reconciliation = Reconciliation(process.database, Ages(300 + LEASE_S, LEASE_S))
    async with alive(living):
        (difference,) = await reconciliation.ledger_verify()
        assert difference.invariant == "no hold outlives its process"
        assert difference.subject == str(lost.id)
        recovery = Recovery(process.database, LEASE_S)
        assert await recovery.ledger_recover() == Recovered(1, 1)
        assert await reconciliation.ledger_verify() == []
        assert await recovery.ledger_recover() == Recovered(0, 0)
    assert await balance_of(process, tenant) == Balance(70, 20, 10, 0, 0)
    await living.ledger.resolve(release(kept))


async def test_a_live_process_whose_registration_is_lost_is_spared(process: Process) -> None:
    """The next heartbeat registers the process again."""
    tenant = await make_tenant(process.database, credit=100)
    living = dead_process(process)
    kept = await held(living, tenant, 10)
    await run(process.database, "DELETE FROM processes WHERE id = %s", living.id)
    sweep = asyncio.ensure_future(Recovery(process.database, LEASE_S).ledger_recover())
    await asyncio.sleep(0.1)  # by now the sweep has found the process unregistered
    async with alive(living):
        assert await sweep == Recovered(0, 0)
    await living.ledger.resolve(release(kept))


async def test_a_machine_that_stops_amid_a_sweep_does_not_stop_the_others(
    process: Process, other_process: Process
) -> None:
    """A machine that freezes or loses its network during a sweep keeps its database session open. The
    server closes the session, and another machine sweeps."""
    tenant = await make_tenant(process.database, credit=100)
    dead = dead_process(process)
    hold = await held(dead, tenant, 10)
    await fall_silent(dead, 3600)
    with pytest.raises(Unavailable):
        async with (
            other_process.database.autocommit() as frozen,
            processes.sweep_lock(frozen, idle_s=1) as is_taken,
            asyncio.timeout(20),
        ):
            assert is_taken
            while not (  # noqa: ASYNC110 - waits for the server
                await Recovery(process.database, LEASE_S).recover_silent()
            ).reservations:
                await asyncio.sleep(0.1)
    await process.ledger.resolve(release(hold))


@pytest.mark.parametrize("silent_s", [3600.0, -3600.0])
async def test_verify_names_a_hold_of_a_dead_process(process: Process, silent_s: float) -> None:
    """The hold is found even if the clock was set back, so that the last heartbeat is in the future."""
    tenant = await make_tenant(process.database, credit=100)
    dead = dead_process(process)
    hold = await held(dead, tenant, 10)
    await move_back(process, hold, silent_s)
    await fall_silent(dead, silent_s)
    reconciliation = Reconciliation(process.database, Ages(300 + LEASE_S, LEASE_S))
    (difference,) = await reconciliation.ledger_verify()
    assert (difference.invariant, difference.subject) == (
        "no hold outlives its process",
        str(hold.id),
    )


async def check_sweeps_and_settlements(process: Process, other: Process, many: int) -> None:
    """Checks that each reservation is resolved once if two recoveries, settlements and releases run
    concurrently."""
    tenant = await make_tenant(process.database, credit=10 * many)
    owner = dead_process(process)
    holds = [await held(owner, tenant, 10) for _ in range(many)]
    results = await asyncio.gather(
        *[owner.ledger.resolve(settlement(hold, 4)) for hold in holds],
        Recovery(process.database, 0).ledger_recover(),
        Recovery(other.database, 0).ledger_recover(),
        *[other.ledger.resolve(release(hold)) for hold in holds],
    )
    assert [found for found in results if isinstance(found, bool)].count(True) == many
    [[settled]] = await rows(
        process.database,
        "SELECT coalesce(sum(settled), 0) FROM resolutions WHERE organization_id = %s",
        tenant.organization_id,
    )
    expected = Balance(10 * many - settled, 0, 0, settled, 0)
    assert await balance_of(process, tenant) == expected


async def test_two_sweeps_and_settlements_at_once(
    process: Process, other_process: Process, proof: Proof
) -> None:
    rounds = proof.size(3, 50)
    for _ in range(rounds):
        await check_sweeps_and_settlements(process, other_process, 20)
    proof.count("races of two sweeps with settlements", rounds * 20)


async def test_only_one_sweep_at_a_time(process: Process, other_process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    await held(dead_process(process), tenant, 1)
    async with (
        process.database.autocommit() as connection,
        processes.sweep_lock(connection) as is_taken,
    ):
        assert is_taken
        assert await Recovery(other_process.database, 0).ledger_recover() == Recovered(0, 0)
    assert await Recovery(other_process.database, 0).ledger_recover() == Recovered(1, 1)


async def test_a_cancelled_sweep_leaves_no_lock_and_no_timeout(process: Process) -> None:
    async with process.database.autocommit() as connection:
        pid = connection.info.backend_pid
        with pytest.raises(asyncio.CancelledError):
            async with processes.sweep_lock(connection) as is_taken:
                assert is_taken
                raise asyncio.CancelledError
        found = await connection.execute(
            """
            SELECT current_setting('idle_session_timeout'),
                (SELECT count(*) FROM pg_locks WHERE pid = %s AND locktype = 'advisory')
            """,
            (pid,),
        )
        assert await found.fetchone() == ("0", 0)


async def test_a_process_that_drained_may_sign_off(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    ending = dead_process(process)
    lease = Lease(process.database, ending.id, LEASE_S)
    await lease.heartbeat()
    hold = await held(ending, tenant, 10)
    assert (ending.ledger.open_holds, await ending.ledger.drain()) == (1, False)
    await ending.ledger.resolve(release(hold))
    assert (ending.ledger.open_holds, await ending.ledger.drain()) == (0, True)
    await lease.sign_off()
    assert await Recovery(process.database, 0).ledger_recover() == Recovered(0, 0)


async def test_a_lease_is_steady_after_its_time_without_a_miss(process: Process) -> None:
    lease = Lease(process.database, dead_process(process).id, 0.05)
    assert not lease.steady
    await lease.heartbeat()
    assert not lease.steady
    await asyncio.sleep(0.06)
    await lease.heartbeat()
    assert lease.steady
