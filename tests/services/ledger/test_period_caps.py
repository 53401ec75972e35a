"""Caps by day, week and month on the real database, with a clock that tests can set."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.database_clock import DatabaseClock
from tests.support.databases import own_database
from tests.support.ledger import (
    LIMITS,
    LedgerTenant,
    Process,
    another_project,
    differences,
    fold,
    held,
    hold_of,
    make_database,
    make_process,
    make_tenant,
    release,
    rows,
    run,
    settlement,
)
from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.admission import Refusal
from tollkeeper.domain.caps import COUNTED_PERIODS, CapPeriod
from tollkeeper.domain.errors import InvalidRequest, NotFound
from tollkeeper.domain.ledger import Hold
from tollkeeper.services.ledger.caps import Caps
from tollkeeper.services.ledger.recovery import Recovery
from tollkeeper.services.tenants.idempotency import Idempotency
from tollkeeper.services.tenants.project_keys import ProjectKeys
from tollkeeper.services.vault import Vault
from tollkeeper.storage.accounts import CapUse

DAY, WEEK, MONTH = COUNTED_PERIODS
NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
# The last second of each period, with the ones that end with it.
LAST_SECONDS = [
    pytest.param(datetime(2026, 11, 17, 23, 59, 59, tzinfo=UTC), {DAY}, id="tuesday"),
    pytest.param(datetime(2026, 11, 22, 23, 59, 59, tzinfo=UTC), {DAY, WEEK}, id="sunday"),
    pytest.param(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), {DAY, MONTH}, id="year"),
    pytest.param(datetime(2028, 2, 28, 23, 59, 59, tzinfo=UTC), {DAY}, id="before leap day"),
    pytest.param(datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC), {DAY, MONTH}, id="leap day"),
    pytest.param(datetime(2027, 2, 28, 23, 59, 59, tzinfo=UTC), {DAY, WEEK, MONTH}, id="all"),
]


@dataclass
class World:
    """Two processes on one database, and one tenant with credit."""

    processes: tuple[Process, Process]
    clock: DatabaseClock
    tenant: LedgerTenant
    caps: Caps

    @property
    def process(self) -> Process:
        return self.processes[0]

    async def set(
        self,
        amount: int,
        period: CapPeriod,
        *,
        project: ProjectId | None = None,
        key: KeyId | None = None,
    ) -> CapUse:
        return await self.caps.cap_set(self.tenant.organization_id, amount, period, project, key)

    async def hold(self, amount: int, tenant: LedgerTenant | None = None) -> Hold:
        return await held(self.process, tenant or self.tenant, amount)

    async def refusal(self, amount: int, tenant: LedgerTenant | None = None) -> Refusal | None:
        hold = hold_of(tenant or self.tenant, amount)
        return (await self.processes[1].ledger.hold(hold)).refusal

    async def settle(self, hold: Hold, cost: int) -> None:
        assert await self.process.ledger.resolve(settlement(hold, cost), hold)

    async def release(self, hold: Hold) -> None:
        assert await self.process.ledger.resolve(release(hold), hold)

    async def uses(self) -> list[tuple[int, int, int]]:
        """Held, spent and remaining of each cap."""
        found = await self.caps.cap_show(self.tenant.organization_id)
        return [(use.held_picousd, use.spent_picousd, use.remaining_picousd) for use in found]

    async def check(self) -> None:
        """Every invariant, before and after everything is folded in."""
        assert await self.differences() == []
        await fold(self.process, self.tenant)
        assert await self.differences() == []

    async def differences(self) -> list[tuple[str, str, str]]:
        """Without the ages of holds: the clock has jumped since other tests have held."""
        found = await differences(self.process.database)
        return [one for one in found if one[0] != "no hold outlives its process"]


@pytest.fixture(scope="module")
def clock(shared_conninfo: str) -> DatabaseClock:
    return DatabaseClock(own_database(shared_conninfo, f"period_caps_{uuid4().hex}"))


@pytest.fixture
async def world(clock: DatabaseClock) -> AsyncIterator[World]:
    clock.set(NOON)
    database = make_database(clock.conninfo)
    await database.open()
    processes = make_process(database), make_process(database)
    tenant = await make_tenant(database, credit=10**6)
    yield World(processes, clock, tenant, Caps(database, LIMITS))
    for process in processes:
        await process.ledger.drain()
    await database.close()


@pytest.mark.parametrize("period", COUNTED_PERIODS)
async def test_a_cap_of_a_key_counts_what_it_holds_and_spends(
    world: World, period: CapPeriod
) -> None:
    use = await world.set(10, period, key=world.tenant.key_id)
    assert (use.project_id, use.key_id) == (world.tenant.project_id, world.tenant.key_id)
    await world.settle(await world.hold(6), 2)
    running = await world.hold(3)
    unsettled = await world.hold(4)
    assert await world.process.ledger.mark_unsettled(unsettled, "nobody knows")
    assert await world.uses() == [(7, 2, 1)]
    assert await world.refusal(2) is Refusal.KEY_CAP
    await world.check()
    await world.release(running)
    await world.settle(unsettled, 5)
    # The fifth is overage: a call may cost more than its hold, and the cap sees it.
    assert await world.uses() == [(0, 7, 3)]
    assert await world.refusal(4) is Refusal.KEY_CAP
    assert await world.refusal(3) is None
    await world.check()


async def test_each_owner_has_caps_of_its_own(world: World) -> None:
    other = await another_project(world.process.database, world.tenant)
    await world.set(100, DAY)
    await world.set(50, WEEK, project=other.project_id)
    await world.set(20, MONTH, key=other.key_id)
    await world.set(90, MONTH)
    await world.hold(60)
    assert await world.refusal(21, other) is Refusal.KEY_CAP
    await world.hold(20, other)
    assert await world.refusal(1, other) is Refusal.KEY_CAP
    found = await world.caps.cap_show(world.tenant.organization_id)
    assert [(use.project_id, use.key_id, use.cap.period, use.held_picousd) for use in found] == [
        (None, None, MONTH, 80),
        (None, None, DAY, 80),
        (other.project_id, None, WEEK, 20),
        (other.project_id, other.key_id, MONTH, 20),
    ]
    assert await world.refusal(11) is Refusal.ORGANIZATION_CAP
    assert await world.refusal(10) is None
    await world.check()


@pytest.mark.parametrize(("last", "ended"), LAST_SECONDS)
async def test_a_new_period_counts_from_zero(
    world: World, last: datetime, ended: set[CapPeriod]
) -> None:
    midnight = last + timedelta(seconds=1)
    for period in COUNTED_PERIODS:
        world.clock.set(last)
        world.tenant = await make_tenant(world.process.database, credit=100)
        use = await world.set(10, period, key=world.tenant.key_id)
        assert use.resets_at is not None
        assert (use.resets_at == midnight.timestamp()) is (period in ended)
        spanning = await world.hold(6)
        await world.settle(await world.hold(4), 4)
        assert await world.refusal(1) is Refusal.KEY_CAP
        world.clock.set(midnight)
        assert await world.refusal(10) is (None if period in ended else Refusal.KEY_CAP)
        await world.check()
        # What was held in the old period is spent in the old period.
        await world.settle(spanning, 5)
        remaining = 0 if period in ended else 1
        assert [use[2] for use in await world.uses()] == [remaining]
        assert await world.refusal(remaining + 1) is Refusal.KEY_CAP
        assert await world.refusal(remaining) is None
        await world.check()


async def test_a_cap_counts_what_was_before_it(world: World) -> None:
    """Also what is resolved and not folded in yet, and what is resolved right after."""
    yesterday = NOON - timedelta(days=1)
    world.clock.set(yesterday)
    await world.settle(await world.hold(9), 9)
    world.clock.set(NOON)
    await world.settle(await world.hold(7), 3)
    running = await world.hold(5)
    waiting = await world.hold(2)
    await world.settle(waiting, 1)
    day = await world.set(20, DAY, key=world.tenant.key_id)
    assert (day.held_picousd, day.spent_picousd) == (5, 4)
    week = await world.set(20, WEEK)
    assert (week.held_picousd, week.spent_picousd) == (5, 13)
    await world.settle(running, 4)
    assert await world.uses() == [(0, 17, 3), (0, 8, 12)]
    await world.check()
    assert await world.refusal(4) is Refusal.ORGANIZATION_CAP
    assert await world.refusal(3) is None
    await world.check()


async def test_a_cap_below_what_was_spent_stops_the_next_call_only(world: World) -> None:
    running = await world.hold(8)
    use = await world.set(5, DAY, key=world.tenant.key_id)
    assert use.remaining_picousd == -3
    await world.check()
    assert await world.refusal(0) is Refusal.KEY_CAP
    await world.settle(running, 7)
    await world.check()
    # A raised cap counts at once, on every process.
    await world.set(9, DAY, key=world.tenant.key_id)
    assert await world.refusal(3) is Refusal.KEY_CAP
    assert await world.refusal(2) is None
    await world.check()


async def test_a_cleared_cap_is_gone_and_may_be_cleared_again(world: World) -> None:
    organization, key = world.tenant.organization_id, world.tenant.key_id
    for period in (DAY, WEEK):
        await world.set(1, period, key=key)
        await world.set(1, period)
    await world.set(1, MONTH)
    assert await world.refusal(2) is Refusal.ORGANIZATION_CAP
    for _ in range(2):
        await world.caps.cap_clear(organization, period=DAY)
    assert await world.refusal(2) is Refusal.ORGANIZATION_CAP
    await world.caps.cap_clear(organization, period=CapPeriod.TOTAL)
    assert len(await world.uses()) == 4
    await world.caps.cap_clear(organization)
    assert await world.refusal(2) is Refusal.KEY_CAP
    await world.caps.cap_clear(organization, key_id=key)
    assert await world.uses() == []
    await world.hold(2)
    # Without period caps the account says so, and calls write nothing for them.
    assert await rows(
        world.process.database,
        "SELECT spending_day FROM accounts WHERE organization_id = %s",
        organization,
    ) == [(None,)]
    await world.check()


async def test_two_processes_cannot_pass_a_cap_together(world: World) -> None:
    other = await another_project(world.process.database, world.tenant)
    await world.set(70, DAY, key=world.tenant.key_id)
    await world.set(105, WEEK)
    decisions = await asyncio.gather(
        *[
            world.processes[number % 2].ledger.hold(
                hold_of((world.tenant, other)[number % 3 == 0], 7)
            )
            for number in range(90)
        ]
    )
    assert sum(decision.refusal is None for decision in decisions) == 15
    assert {decision.refusal for decision in decisions} >= {None, Refusal.ORGANIZATION_CAP}
    week, day = await world.uses()
    assert week == (105, 0, 0)
    assert day[0] <= 70
    await world.check()


async def test_resolutions_and_holds_at_once_keep_every_count(world: World) -> None:
    await world.set(200, DAY, key=world.tenant.key_id)
    await world.set(300, WEEK, project=world.tenant.project_id)

    async def call(number: int) -> None:
        process = world.processes[number % 2]
        hold = hold_of(world.tenant, 10)
        if (await process.ledger.hold(hold)).refusal is not None:
            return
        match number % 4:
            case 0:
                await process.ledger.resolve(release(hold), hold)
            case 1:
                await process.ledger.mark_unsettled(hold, "nobody knows")
                await process.ledger.resolve(settlement(hold, 3), hold)
            case _:
                await process.ledger.resolve(settlement(hold, number % 13), hold)

    await asyncio.gather(*[call(number) for number in range(120)])
    await world.check()


async def test_a_dead_process_keeps_its_holds_in_their_period(world: World) -> None:
    await world.set(10, DAY, key=world.tenant.key_id)
    left = await world.hold(8)
    recovered = await Recovery(world.process.database, 0).ledger_recover()
    assert recovered.reservations >= 1
    assert await world.refusal(3) is Refusal.KEY_CAP
    await world.check()
    world.clock.pass_time(days=1)
    assert await world.refusal(10) is None
    await world.settle(left, 8)
    assert await world.uses() == [(10, 0, 0)]
    await world.check()


async def test_a_hold_that_the_database_lost_counts_when_it_is_put_back(world: World) -> None:
    await world.set(10, DAY, key=world.tenant.key_id)
    lost = hold_of(world.tenant, 4)
    await world.process.store.restore_all([lost])
    world.clock.pass_time(days=1)
    await world.process.store.restore_all([hold_of(world.tenant, 1)])
    await world.settle(lost, 6)
    assert await world.uses() == [(0, 0, 10)]
    await world.check()


async def test_a_clock_that_is_set_back_reopens_no_period(world: World) -> None:
    await world.set(10, DAY, key=world.tenant.key_id)
    world.clock.pass_time(days=1)
    await world.hold(6)
    world.clock.pass_time(days=-1)
    assert await world.refusal(5) is Refusal.KEY_CAP
    late = await world.hold(3)
    await world.process.store.restore_all([hold_of(world.tenant, 1)])
    assert await world.uses() == [(9, 0, 1)]
    await world.check()
    world.clock.pass_time(days=1)
    await world.settle(late, 2)
    assert await world.uses() == [(6, 2, 2)]
    await world.check()
    # A cap that is set while the clock is behind knows of the later day too.
    await world.caps.cap_clear(world.tenant.organization_id, key_id=world.tenant.key_id)
    world.clock.pass_time(days=-1)
    assert (await world.set(10, DAY)).remaining_picousd == 2
    await world.check()


async def _rotate(world: World, key_id: KeyId) -> KeyId:
    def now() -> int:
        return int(world.clock.now.timestamp())

    idempotency = Idempotency(Vault(b"0" * 32), now)
    keys = ProjectKeys(world.process.database, idempotency, now, ("inference:write",))
    return (await keys.project_key_rotate(key_id, grace_s=3600)).new.id


async def test_a_rotated_key_goes_on_with_the_cap_and_what_was_spent(world: World) -> None:
    await world.set(10, DAY, key=world.tenant.key_id)
    running = await world.hold(4)
    await world.settle(await world.hold(3), 3)
    second = replace(world.tenant, key_id=await _rotate(world, world.tenant.key_id))
    third = replace(world.tenant, key_id=await _rotate(world, second.key_id))
    for tenant in (world.tenant, second, third):
        assert await world.refusal(4, tenant) is Refusal.KEY_CAP
    # The old key works on, and both spend the same money.
    await world.hold(1, second)
    await world.hold(2, third)
    assert await world.refusal(1) is Refusal.KEY_CAP
    await world.settle(running, 1)
    assert await world.uses() == [(3, 4, 3)]
    [use] = await world.caps.cap_show(world.tenant.organization_id)
    assert use.key_id == third.key_id
    # Whichever of the keys is named, it is the same cap; a new one counts for all of them too.
    await world.set(12, DAY, key=second.key_id)
    assert await world.uses() == [(3, 4, 5)]
    assert (await world.set(20, WEEK, key=third.key_id)).remaining_picousd == 13
    await world.check()
    await world.caps.cap_clear(world.tenant.organization_id, key_id=world.tenant.key_id)
    assert await world.uses() == []


async def test_upkeep_begins_the_periods_of_keys_that_are_not_used(world: World) -> None:
    await world.set(10, DAY, key=world.tenant.key_id)
    await world.set(10, MONTH, key=world.tenant.key_id)
    running = await world.hold(4)
    world.clock.pass_time(days=1)
    await world.caps.begin_periods()
    assert await rows(
        world.process.database,
        """
        SELECT period, held FROM period_caps WHERE organization_id = %s ORDER BY period
        """,
        world.tenant.organization_id,
    ) == [("day", 0), ("month", 4)]
    await world.check()
    await world.settle(running, 4)
    await world.check()
    # A clock that goes back finds the account where it was.
    world.clock.pass_time(days=-1)
    await world.caps.begin_periods()
    await world.hold(6)
    assert await world.uses() == [(6, 0, 4), (6, 4, 0)]
    await world.check()


async def test_changes_are_in_the_audit_list(world: World) -> None:
    organization, key = world.tenant.organization_id, world.tenant.key_id
    await world.set(5, DAY, key=key)
    await world.set(5, DAY, key=key)
    await world.set(6, DAY, key=key)
    await world.set(7, WEEK)
    await world.caps.cap_clear(organization, key_id=key)
    found = await rows(
        world.process.database,
        """
        SELECT operation, object_id, before, after FROM audit WHERE organization_id = %s
        ORDER BY id
        """,
        organization,
    )
    five, six, seven = (
        {"amount": f"0.00000000000{amount}", "period": period}
        for amount, period in ((5, "day"), (6, "day"), (7, "week"))
    )
    assert found == [
        ("cap_set", str(key), None, five),
        ("cap_set", str(key), five, six),
        ("cap_set", str(organization), None, seven),
        ("cap_clear", str(key), six, None),
    ]


async def test_unknown_and_foreign_keys_are_not_found(world: World) -> None:
    stranger = await make_tenant(world.process.database)
    for key in (KeyId(uuid4()), stranger.key_id):
        with pytest.raises(NotFound):
            await world.set(1, DAY, key=key)
        with pytest.raises(NotFound):
            await world.caps.cap_clear(world.tenant.organization_id, key_id=key)
        with pytest.raises(NotFound):
            await world.caps.cap_show_of_key(world.tenant.organization_id, key)
    other = await another_project(world.process.database, world.tenant)
    with pytest.raises(NotFound):
        await world.set(1, DAY, project=other.project_id, key=world.tenant.key_id)
    with pytest.raises(NotFound):
        await world.caps.cap_set(OrganizationId(uuid4()), 1, DAY)


async def test_what_is_no_cap_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequest) as negative:
        await world.set(-1, DAY)
    assert negative.value.param == "amount"
    with pytest.raises(InvalidRequest) as total:
        await world.set(1, CapPeriod.TOTAL, key=world.tenant.key_id)
    assert total.value.param == "period"


async def test_the_caps_that_bind_a_key(world: World) -> None:
    other = await another_project(world.process.database, world.tenant)
    await world.set(1, DAY)
    await world.set(2, WEEK, project=world.tenant.project_id)
    await world.set(3, MONTH, key=world.tenant.key_id)
    await world.set(4, DAY, project=other.project_id)
    await world.set(5, DAY, key=other.key_id)
    found = await world.caps.cap_show_of_key(world.tenant.organization_id, world.tenant.key_id)
    assert [use.cap.amount_picousd for use in found] == [1, 2, 3]


BROKEN = [
    "UPDATE period_caps SET held = held + 1 WHERE organization_id = %s",
    "UPDATE period_caps SET settled = settled + 1 WHERE organization_id = %s",
    "UPDATE period_caps SET cap = 1 WHERE organization_id = %s",
    "UPDATE period_caps SET number = number + 1, held = 0, settled = 0 WHERE organization_id = %s",
    "UPDATE accounts SET spending_day = NULL WHERE organization_id = %s",
]


@pytest.mark.parametrize("statement", BROKEN)
async def test_verify_finds_counts_that_differ(world: World, statement: str) -> None:
    await world.set(10, DAY, key=world.tenant.key_id)
    await world.settle(await world.hold(6), 2)
    await world.hold(3)
    await world.check()
    kept = await rows(
        world.process.database,
        "SELECT cap, number, held, settled FROM period_caps WHERE organization_id = %s",
        world.tenant.organization_id,
    )
    await run(world.process.database, statement, world.tenant.organization_id)
    found = await world.differences()
    assert {subject for _, subject, _ in found} == {str(world.tenant.key_id)}
    # Put right again, for the tests after this one.
    await run(
        world.process.database,
        """
        UPDATE period_caps SET cap = %s, number = %s, held = %s, settled = %s
        WHERE organization_id = %s
        """,
        *kept[0],
        world.tenant.organization_id,
    )
    await run(
        world.process.database,
        "UPDATE accounts SET spending_day = %s WHERE organization_id = %s",
        kept[0][1],
        world.tenant.organization_id,
    )
    await world.check()
