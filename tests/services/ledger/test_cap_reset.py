"""Tests caps after the database's clock ran ahead: they stay at that date until an operator resets them."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.support.capped_books import DAY, MONTH, NOON, WEEK, CappedBooks
from tests.support.ledger import LIMITS, held, make_tenant, release, rows, run, settlement
from tests.support.ledger_months import OldBooks, end_month, this_month
from tollkeeper.domain.errors import NotFound, StateConflict
from tollkeeper.domain.ledger import Hold
from tollkeeper.services.audit import Audit
from tollkeeper.services.clock import unix_now
from tollkeeper.services.ledger.caps import Caps
from tollkeeper.storage import resolutions

AHEAD = datetime(2027, 3, 5, 12, tzinfo=UTC)


@pytest.fixture
def reset(world: CappedBooks) -> CappedBooks:
    """Returns a ledger with a caps service whose clock has the time of the database."""
    caps = Caps(world.process.database, LIMITS, clock=lambda: int(world.clock.now.timestamp()))
    return replace(world, caps=caps)


async def _spend(world: CappedBooks, amount: int) -> None:
    await world.settle(await world.hold(amount + 1), amount)


async def _run_ahead(world: CappedBooks) -> tuple[Hold, Hold]:
    """Spends 10 before the clock jumps ahead, 20 while it is ahead, and 4 after its correction. Returns
    two holds without a resolution: 5 from the time ahead, and 3 (unsettled) from the time afterwards."""
    await _spend(world, 10)
    world.clock.set(AHEAD)
    await _spend(world, 20)
    early = await world.hold(5)
    world.clock.set(NOON)
    await _spend(world, 4)
    late = await world.hold(3)
    await world.process.ledger.mark_unsettled(late, "nobody knows")
    return early, late


async def _audited(world: CappedBooks) -> list[str]:
    audit = Audit(world.process.database, unix_now, retention_days=30)
    page = await audit.audit_list(organization_id=world.tenant.organization_id)
    return [entry.change.operation for entry in page.entries if entry.change.operation != "cap_set"]


async def test_caps_count_for_the_present_again(reset: CappedBooks) -> None:
    for period in (DAY, WEEK, MONTH):
        await reset.set(50, period)
        await reset.set(50, period, project=reset.tenant.project_id)
        await reset.set(50, period, key=reset.tenant.key_id)
    early, late = await _run_ahead(reset)
    frozen = await reset.caps.cap_show(reset.tenant.organization_id)
    assert {use.resets_at > AHEAD.timestamp() for use in frozen if use.resets_at} == {True}
    # The periods of the later date do not count the 10 from before the jump.
    assert set(await reset.uses()) == {(8, 24, 18)}
    await reset.check()
    shown = await reset.caps.cap_reset(reset.tenant.organization_id)
    assert shown == await reset.caps.cap_show(reset.tenant.organization_id)
    assert {use.resets_at < AHEAD.timestamp() for use in shown if use.resets_at} == {True}
    assert set(await reset.uses()) == {(8, 34, 8)}
    await reset.check()
    assert await reset.refusal(9) is not None
    await reset.settle(early, 5)
    await reset.release(late)
    assert set(await reset.uses()) == {(0, 39, 11)}
    await reset.check()
    assert await _audited(reset) == ["cap_reset"]


async def test_later_periods_begin_at_zero_and_know_nothing_of_the_reset(
    reset: CappedBooks,
) -> None:
    for period in (DAY, MONTH):
        await reset.set(50, period)
    await _run_ahead(reset)
    await reset.caps.cap_reset(reset.tenant.organization_id)
    reset.clock.pass_time(days=1)
    assert await reset.uses() == [(8, 34, 8), (0, 0, 50)]
    await reset.check()
    # When the real time reaches the date of the jump, its periods begin at zero as usual.
    reset.clock.set(AHEAD)
    assert await reset.uses() == [(0, 0, 50), (0, 0, 50)]
    await _spend(reset, 6)
    await reset.check()
    assert await reset.uses() == [(0, 6, 44), (0, 6, 44)]


async def test_a_cap_that_is_set_after_the_reset_counts_for_the_present(
    reset: CappedBooks,
) -> None:
    await _run_ahead(reset)
    await reset.caps.cap_reset(reset.tenant.organization_id)
    await reset.set(50, DAY)
    assert await reset.uses() == [(8, 34, 8)]
    await reset.check()


async def test_a_cap_may_be_below_what_the_present_period_has_spent(reset: CappedBooks) -> None:
    for period in (DAY, MONTH):
        await reset.set(34, period)
    await _run_ahead(reset)
    await reset.caps.cap_reset(reset.tenant.organization_id)
    assert await reset.uses() == [(8, 34, -8), (8, 34, -8)]
    await reset.check()
    assert await reset.refusal(1) is not None


async def test_calls_on_days_that_are_over_stay_there(reset: CappedBooks) -> None:
    """Calls that were admitted after the correction of the clock keep their own day."""
    await reset.set(50, DAY)
    await _run_ahead(reset)
    reset.clock.pass_time(days=2)
    await _spend(reset, 2)
    # Calls from the time when the clock was ahead count today, because their real day is unknown.
    await reset.caps.cap_reset(reset.tenant.organization_id)
    assert await reset.uses() == [(5, 22, 23)]
    await reset.check()


async def test_where_nothing_is_ahead_nothing_is_changed(reset: CappedBooks) -> None:
    await reset.set(50, DAY)
    await _spend(reset, 10)
    before = await reset.uses()
    await reset.caps.cap_reset(reset.tenant.organization_id)
    assert (await reset.uses(), await _audited(reset)) == (before, [])
    await reset.check()
    with pytest.raises(NotFound):
        await reset.caps.cap_reset(
            (await make_tenant(reset.process.database)).project_id  # type: ignore[arg-type]
        )


async def test_another_organization_stays_as_it_is(reset: CappedBooks) -> None:
    other = replace(reset, tenant=await make_tenant(reset.process.database, credit=10**6))
    for world in (reset, other):
        await world.set(50, MONTH)
        await _run_ahead(world)
    before = await other.uses()
    await reset.caps.cap_reset(reset.tenant.organization_id)
    assert (await other.uses(), await _audited(other)) == (before, [])
    await reset.check()


async def test_a_settlement_under_way_does_not_freeze_the_caps_again(reset: CappedBooks) -> None:
    for period in (DAY, MONTH):
        await reset.set(50, period)
    early, _ = await _run_ahead(reset)
    database = reset.process.database
    async with database.transaction() as connection:
        await resolutions.resolve(connection, [settlement(early, 5)])
        resetting = asyncio.create_task(reset.caps.cap_reset(reset.tenant.organization_id))
        await asyncio.sleep(0.5)
        assert not resetting.done()
    await resetting
    assert await reset.uses() == [(3, 39, 8), (3, 39, 8)]
    await reset.check()
    assert await reset.uses() == [(3, 39, 8), (3, 39, 8)]


@pytest.mark.parametrize("attempt", range(5))
async def test_a_reset_amid_calls_is_exact(reset: CappedBooks, attempt: int) -> None:
    for period in (DAY, MONTH):
        await reset.set(10**5, period)
    reset.clock.set(AHEAD)
    holds = [await reset.hold(10 + number) for number in range(24)]
    reset.clock.set(NOON)

    async def end(number: int, hold: Hold) -> None:
        await asyncio.sleep(0.002 * (number % (attempt + 2)))
        process = reset.processes[number % 2]
        ending = settlement(hold, number) if number % 3 else release(hold)
        assert await process.ledger.resolve(ending, hold)

    async def begin(number: int) -> None:
        await asyncio.sleep(0.003 * number)
        await held(reset.processes[number % 2], reset.tenant, 7)

    await asyncio.gather(
        *(end(number, hold) for number, hold in enumerate(holds)),
        *(begin(number) for number in range(12)),
        reset.caps.cap_reset(reset.tenant.organization_id),
    )
    spent = sum(number for number in range(24) if number % 3)
    assert await reset.uses() == [(84, spent, 10**5 - 84 - spent)] * 2
    await reset.check()
    assert await reset.uses() == [(84, spent, 10**5 - 84 - spent)] * 2


@pytest.mark.parametrize("hours", [-25, -2, 2])
async def test_clocks_that_disagree_are_refused(reset: CappedBooks, hours: int) -> None:
    """If the database's clock is behind, a reset would forget the amount spent in the present period."""
    await reset.set(50, MONTH)
    await _run_ahead(reset)
    before = await reset.uses()
    own = int(reset.clock.now.timestamp()) + hours * 3600
    with pytest.raises(StateConflict, match="2026-11-17 12:00 UTC"):
        await Caps(reset.process.database, LIMITS, clock=lambda: own).cap_reset(
            reset.tenant.organization_id
        )
    assert (await reset.uses(), await _audited(reset)) == (before, [])


# The tests below use months that are over.

LAST = this_month().plus(-3)


async def test_a_month_is_not_closed_while_its_calls_count_for_a_later_one(old: OldBooks) -> None:
    tenant = await make_tenant(old.process.database, credit=100)
    hold = await old.hold(tenant, LAST, 10)
    later = this_month().plus(5)
    for table in ("reservations", "accounts", "project_accounts"):
        await run(old.process.database, f"UPDATE {table} SET month = {later.number}")
    assert await old.process.ledger.resolve(settlement(hold, 6), hold)
    with pytest.raises(StateConflict, match=f"cap reset {tenant.organization_id}"):
        await old.months.ledger_close()
    caps = Caps(old.process.database, LIMITS)
    await caps.cap_set(tenant.organization_id, 50, MONTH)
    await caps.cap_reset(tenant.organization_id)
    [use] = await caps.cap_show(tenant.organization_id)
    assert use.spent_picousd == 6
    assert await old.verify() == []
    await old.months.ledger_close()
    assert await old.verify() == []


async def test_what_was_dropped_with_its_month_cannot_be_counted_again(old: OldBooks) -> None:
    """The first call counts for the current month. Its gateway's clock was wrong, so its id belongs to a
    past month, and its row is dropped with that month."""
    tenant = await make_tenant(old.process.database, credit=100)
    await old.spend(tenant, LAST, 10, 8)
    await end_month(old, LAST)
    caps = Caps(old.process.database, LIMITS)
    await caps.cap_set(tenant.organization_id, 50, MONTH)
    hold = await held(old.process, tenant, 5)
    later = this_month().plus(5)
    for table in ("accounts", "project_accounts"):
        await run(
            old.process.database,
            f"UPDATE {table} SET month = {later.number}, month_held = 5, month_settled = 0",
        )
    await run(
        old.process.database,
        "UPDATE reservations SET month = %s WHERE id = %s",
        later.number,
        hold.id,
    )
    with pytest.raises(StateConflict, match="was dropped"):
        await caps.cap_reset(tenant.organization_id)
    [[month]] = await rows(
        old.process.database, "SELECT month FROM reservations WHERE id = %s", hold.id
    )
    assert month == later.number
