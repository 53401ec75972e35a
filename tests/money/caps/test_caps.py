"""Tests caps on a real database whose clock the tests set."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.capped_books import DAY, MONTH, NOON, TOTAL, WEEK, CappedBooks
from tests.support.ledger import another_project, hold_of, make_tenant, release, rows, settlement
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.holds.rule import Refusal
from tollkeeper.money.unsettled.recovery import Recovery

# The last second of a day, with the periods that end with this day.
LAST_SECONDS = [
    pytest.param(datetime(2026, 11, 17, 23, 59, 59, tzinfo=UTC), {DAY}, id="tuesday"),
    pytest.param(datetime(2026, 11, 22, 23, 59, 59, tzinfo=UTC), {DAY, WEEK}, id="sunday"),
    pytest.param(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), {DAY, MONTH}, id="year"),
    pytest.param(datetime(2028, 2, 28, 23, 59, 59, tzinfo=UTC), {DAY}, id="before leap day"),
    pytest.param(datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC), {DAY, MONTH}, id="leap day"),
    pytest.param(datetime(2027, 2, 28, 23, 59, 59, tzinfo=UTC), {DAY, WEEK, MONTH}, id="all"),
]


@pytest.mark.parametrize("period", CapPeriod)
async def test_a_cap_of_a_key_counts_what_it_holds_and_spends(
    world: CappedBooks, period: CapPeriod
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
    # The call cost 5 with a hold of 4. The cap counts the overage too.
    assert await world.uses() == [(0, 7, 3)]
    assert await world.refusal(4) is Refusal.KEY_CAP
    assert await world.refusal(3) is None
    await world.check()


async def test_each_owner_has_caps_of_its_own(world: CappedBooks) -> None:
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
        (None, None, DAY, 80),
        (None, None, MONTH, 80),
        (other.project_id, None, WEEK, 20),
        (other.project_id, other.key_id, MONTH, 20),
    ]
    assert await world.refusal(11) is Refusal.ORGANIZATION_CAP
    assert await world.refusal(10) is None
    await world.check()


@pytest.mark.parametrize(("last", "ended"), LAST_SECONDS)
async def test_a_new_period_counts_from_zero(
    world: CappedBooks, last: datetime, ended: set[CapPeriod]
) -> None:
    midnight = last + timedelta(seconds=1)
    for period in (DAY, WEEK, MONTH):
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
        # The cost of a call counts in the period of its hold.
        await world.settle(spanning, 5)
        remaining = 0 if period in ended else 1
        assert [use[2] for use in await world.uses()] == [remaining]
        assert await world.refusal(remaining + 1) is Refusal.KEY_CAP
        assert await world.refusal(remaining) is None
        await world.check()


async def test_a_cap_counts_what_was_before_it(world: CappedBooks) -> None:
    """A new cap counts earlier calls of its period, also calls that are not folded yet or still run."""
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


async def test_a_cap_below_what_was_spent_stops_the_next_call_only(world: CappedBooks) -> None:
    running = await world.hold(8)
    use = await world.set(5, DAY, key=world.tenant.key_id)
    assert use.remaining_picousd == -3
    await world.check()
    assert await world.refusal(0) is Refusal.KEY_CAP
    await world.settle(running, 7)
    await world.check()
    # A raised cap is effective at once in every process.
    await world.set(9, DAY, key=world.tenant.key_id)
    assert await world.refusal(3) is Refusal.KEY_CAP
    assert await world.refusal(2) is None
    await world.check()


async def test_a_cleared_cap_is_gone_and_may_be_cleared_again(world: CappedBooks) -> None:
    organization, key = world.tenant.organization_id, world.tenant.key_id
    for period in (DAY, WEEK):
        await world.set(1, period, key=key)
        await world.set(1, period)
    await world.set(1, MONTH)
    assert await world.refusal(2) is Refusal.ORGANIZATION_CAP
    for _ in range(2):
        await world.caps.cap_clear(organization, period=DAY)
    assert await world.refusal(2) is Refusal.ORGANIZATION_CAP
    await world.caps.cap_clear(organization, period=TOTAL)
    assert len(await world.uses()) == 4
    await world.caps.cap_clear(organization)
    assert await world.refusal(2) is Refusal.KEY_CAP
    await world.caps.cap_clear(organization, key_id=key)
    assert await world.uses() == []
    await world.hold(2)
    # Calls of an organization without caps look for none.
    assert await rows(
        world.process.database,
        "SELECT is_capped FROM accounts WHERE organization_id = %s",
        organization,
    ) == [(False,)]
    await world.check()


async def test_two_processes_cannot_pass_a_cap_together(world: CappedBooks) -> None:
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


async def test_resolutions_and_holds_at_once_keep_every_count(world: CappedBooks) -> None:
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


async def test_a_dead_process_keeps_its_holds_in_their_period(world: CappedBooks) -> None:
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


async def test_a_hold_that_the_database_lost_counts_when_it_is_put_back(world: CappedBooks) -> None:
    await world.set(10, DAY, key=world.tenant.key_id)
    lost = hold_of(world.tenant, 4)
    await world.process.store.restore_all([lost])
    world.clock.pass_time(days=1)
    await world.process.store.restore_all([hold_of(world.tenant, 1)])
    await world.settle(lost, 6)
    assert await world.uses() == [(0, 0, 10)]
    await world.check()


@pytest.mark.parametrize("period", CapPeriod)
async def test_a_hold_that_is_put_back_may_be_the_first_of_its_period(
    world: CappedBooks, period: CapPeriod
) -> None:
    await world.set(10, period, project=world.tenant.project_id)
    lost = hold_of(world.tenant, 4)
    await world.process.store.restore_all([lost])
    await world.settle(lost, 6)
    assert await world.refusal(5) is Refusal.PROJECT_CAP
    assert await world.uses() == [(0, 6, 4)]
    await world.check()


async def test_all_periods_of_one_owner_count_together(world: CappedBooks) -> None:
    for amount, period in ((10, DAY), (14, WEEK), (16, MONTH), (17, TOTAL)):
        await world.set(amount, period, key=world.tenant.key_id)
    await world.settle(await world.hold(10), 10)
    assert await world.refusal(1) is Refusal.KEY_CAP
    for days, left in ((1, 4), (7, 2), (30, 1), (365, 0)):
        world.clock.pass_time(days=days)
        assert await world.refusal(left + 1) is Refusal.KEY_CAP
        if left:
            await world.settle(await world.hold(left), left)
        await world.check()
    assert [use[2] for use in await world.uses()] == [10, 14, 16, 0]


async def test_a_cap_of_zero_stops_everything_that_costs(world: CappedBooks) -> None:
    await world.set(0, MONTH)
    assert await world.refusal(1) is Refusal.ORGANIZATION_CAP
    await world.hold(0)


async def test_a_clock_that_is_set_back_counts_in_the_earlier_period(world: CappedBooks) -> None:
    await world.set(10, DAY, key=world.tenant.key_id)
    await world.settle(await world.hold(3), 3)
    world.clock.pass_time(days=1)
    await world.hold(6)
    world.clock.pass_time(days=-1)
    # The row of this day is still there, with what was spent on it.
    assert await world.uses() == [(0, 3, 7)]
    assert await world.refusal(8) is Refusal.KEY_CAP
    late = await world.hold(7)
    await world.check()
    world.clock.pass_time(days=1)
    await world.settle(late, 5)
    assert await world.uses() == [(6, 0, 4)]
    await world.check()


async def test_a_period_whose_row_is_gone_is_counted_anew(world: CappedBooks) -> None:
    """Of the past periods only the latest keeps its row."""
    await world.set(10, DAY, key=world.tenant.key_id)
    await world.settle(await world.hold(3), 3)
    running = await world.hold(2)
    for _ in range(3):
        world.clock.pass_time(days=1)
        await world.hold(6)
    kept = "SELECT count(*) FROM cap_counters WHERE organization_id = %s"
    assert await rows(world.process.database, kept, world.tenant.organization_id) == [(2,)]
    world.clock.set(NOON)
    assert await world.refusal(6) is Refusal.KEY_CAP
    await world.hold(5)
    assert await world.uses() == [(7, 3, 0)]
    await world.settle(running, 2)
    assert await world.uses() == [(5, 5, 0)]
    await world.check()


async def test_a_cap_that_is_set_while_the_clock_is_behind(world: CappedBooks) -> None:
    """It also counts the calls that were made while the clock ran ahead, once that time comes."""
    world.clock.pass_time(days=1)
    await world.hold(6)
    world.clock.pass_time(days=-1)
    assert (await world.set(10, DAY)).remaining_picousd == 10
    await world.hold(1)
    world.clock.pass_time(days=1)
    assert await world.uses() == [(6, 0, 4)]
    assert await world.refusal(5) is Refusal.ORGANIZATION_CAP
    await world.check()
