"""Tests that a cost counts on the UTC day of its call's admission, in caps, reports and closed months."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import LiteralString

from tests.support.capped_books import DAY, CappedBooks
from tests.support.ledger import MODEL, LedgerTenant, held, make_tenant, rows, run, settlement
from tests.support.ledger_months import OldBooks, end_month, this_month
from tollkeeper.database.database import Database
from tollkeeper.money.holds.values import Hold
from tollkeeper.money.settlement import store as resolutions
from tollkeeper.money.unsettled.service import Reconciliation
from tollkeeper.money.verification.store import Ages

LATE = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
NOVEMBER_30 = date(2026, 11, 30)
NOW = this_month()
# Two and three months ago. The fixture `old` has created the partitions of these months.
LAST = NOW.plus(-2)
BEFORE = NOW.plus(-3)


async def _costs(database: Database, tenant: LedgerTenant) -> list[tuple[date, str, int]]:
    found = await rows(
        database,
        """
        SELECT date '1970-01-01' + day, line_item, amount_picousd FROM cost_rollup
        WHERE organization_id = %s ORDER BY day, line_item
        """,
        tenant.organization_id,
    )
    return [(day, line_item, int(amount)) for day, line_item, amount in found]


async def test_a_call_that_ends_after_midnight_costs_on_the_day_of_its_admission(
    world: CappedBooks,
) -> None:
    other = await make_tenant(world.process.database, credit=100)
    world.clock.set(LATE)
    await world.set(50, DAY)
    hold, theirs = await world.hold(9), await world.hold(9, other)
    world.clock.pass_time(minutes=2)
    await world.settle(hold, 9)
    await world.settle(theirs, 6)
    for tenant, cost in ((world.tenant, 9), (other, 6)):
        assert await _costs(world.process.database, tenant) == [
            (NOVEMBER_30, f"{MODEL}, completion", cost - cost // 3),
            (NOVEMBER_30, f"{MODEL}, prompt", cost // 3),
        ]
    assert await world.uses() == [(0, 0, 50)]
    await world.check()


async def test_a_call_of_november_that_is_resolved_in_december_costs_in_november(
    world: CappedBooks,
) -> None:
    world.clock.set(LATE)
    hold = await world.hold(9)
    await world.process.ledger.mark_unsettled(hold, "nobody knows")
    world.clock.pass_time(days=5)
    reconciliation = Reconciliation(world.process.database, Ages(2, 1))
    await reconciliation.ledger_resolve(hold.id, settle_picousd=7)
    costs = await _costs(world.process.database, world.tenant)
    assert costs == [(NOVEMBER_30, f"{MODEL}, other", 7)]
    await world.check()


async def test_rows_of_an_older_version_keep_the_day_of_their_settlement(
    world: CappedBooks,
) -> None:
    database = world.process.database
    world.clock.set(LATE)
    hold = await world.hold(9)
    world.clock.pass_time(minutes=2)
    await world.settle(hold, 9)
    for statement in _ONE_DAY_LATER:
        await run(database, statement, hold.organization_id)
    await world.check()
    for statement in _ONE_DAY_LATER:
        await run(database, statement, hold.organization_id)
    [found] = await world.differences()
    assert found[:2] == ("every settled cost counts on its UTC day", str(hold.id))
    await run(database, "DELETE FROM cost_rollup WHERE organization_id = %s", hold.organization_id)
    await run(database, "UPDATE resolutions SET day = day - 1 WHERE reservation_id = %s", hold.id)
    assert {one[0] for one in await world.differences()} == {
        "the cost report is the sum of settled rows"
    }
    await run(database, _PUT_BACK, hold.id)
    await world.check()


_ONE_DAY_LATER: tuple[LiteralString, ...] = (
    "UPDATE resolutions SET day = day + 1 WHERE organization_id = %s",
    "UPDATE cost_rollup SET day = day + 1 WHERE organization_id = %s",
)
_PUT_BACK: LiteralString = """
    INSERT INTO cost_rollup (organization_id, day, project_id, api_key_id, line_item, amount_picousd)
    SELECT d.organization_id, d.day, r.project_id, r.api_key_id, line.item, line.amount
    FROM resolutions d JOIN reservations r
      ON r.organization_id = d.organization_id AND r.id = d.reservation_id,
    LATERAL (VALUES (r.model || ', prompt', d.prompt), (r.model || ', completion', d.completion))
        AS line (item, amount)
    WHERE d.reservation_id = %s
"""


async def _held_on(old: OldBooks, tenant: LedgerTenant, amount: int, day: int) -> Hold:
    """Creates a hold whose id is of this month, and dates it on another day (in days since 1970)."""
    hold = await held(old.process, tenant, amount)
    await run(
        old.process.database,
        "UPDATE reservations SET held_at = to_timestamp(%s::bigint * 86400) WHERE id = %s",
        day,
        hold.id,
    )
    return hold


async def _today(old: OldBooks) -> date:
    [[found]] = await rows(
        old.process.database, "SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date"
    )
    assert isinstance(found, date)
    return found


async def test_after_its_month_was_closed_a_cost_is_an_adjustment_of_the_open_month(
    old: OldBooks,
) -> None:
    tenant = await make_tenant(old.process.database, credit=1000)
    before = await _held_on(old, tenant, 10, LAST.first_day + 3)
    after = await _held_on(old, tenant, 10, LAST.first_day + 4)
    released = await _held_on(old, tenant, 10, LAST.first_day + 4)
    assert await old.process.ledger.resolve(settlement(before, 6), before)
    await old.months.ledger_close(BEFORE)
    await old.months.ledger_close(LAST)
    closed = await _costs(old.process.database, tenant)
    original = date(1970, 1, 1) + timedelta(days=LAST.first_day + 4)
    assert {day for day, _, _ in closed} == {original - timedelta(days=1)}
    assert await old.process.ledger.resolve(settlement(after, 12), after)
    await old.process.store.release_in_doubt([released])
    today = await _today(old)
    assert await _costs(old.process.database, tenant) == [
        *closed,
        (today, f"{MODEL}, completion, adjustment of {original}", 8),
        (today, f"{MODEL}, prompt, adjustment of {original}", 4),
    ]
    assert await old.verify(full=True) == []
    await run(
        old.process.database,
        "UPDATE resolutions SET adjusts_day = adjusts_day - 1 WHERE reservation_id = %s",
        released.id,
    )
    assert await old.verify() == [("every settled cost counts on its UTC day", str(released.id))]


async def test_an_adjustment_is_closed_and_dropped_with_the_month_of_its_call(
    old: OldBooks,
) -> None:
    tenant = await make_tenant(old.process.database, credit=1000)
    hold = await old.hold(tenant, LAST, 10)
    await run(
        old.process.database,
        "UPDATE reservations SET held_at = to_timestamp(%s::bigint * 86400) WHERE id = %s",
        BEFORE.first_day + 5,
        hold.id,
    )
    await end_month(old, BEFORE)
    assert await old.process.ledger.resolve(settlement(hold, 6), hold)
    costs = await _costs(old.process.database, tenant)
    original = date(1970, 1, 1) + timedelta(days=BEFORE.first_day + 5)
    assert [line_item for _, line_item, _ in costs] == [
        f"{MODEL}, completion, adjustment of {original}",
        f"{MODEL}, prompt, adjustment of {original}",
    ]
    await end_month(old, LAST)
    assert await old.verify(full=True) == []
    assert await _costs(old.process.database, tenant) == costs


async def test_a_settlement_comes_before_a_close_or_after_it(old: OldBooks) -> None:
    """A close waits for a settlement that has begun, so that no cost reaches a closed month."""
    tenant = await make_tenant(old.process.database, credit=1000)
    hold = await _held_on(old, tenant, 10, BEFORE.first_day + 3)
    async with old.process.database.transaction() as connection:
        await resolutions.resolve(connection, [settlement(hold, 6)])
        closing = asyncio.create_task(old.months.ledger_close(BEFORE))
        await asyncio.sleep(0.5)
        assert not closing.done()
    await closing
    original = date(1970, 1, 1) + timedelta(days=BEFORE.first_day + 3)
    assert {day for day, _, _ in await _costs(old.process.database, tenant)} == {original}
    assert await old.verify() == []
