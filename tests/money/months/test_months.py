"""Tests that ledger months are created in advance and closed, and that closed months are proven and
cannot be changed."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import LiteralString

import pytest
from msgspec.structs import replace
from psycopg import errors as pg

from tests.support.databases import own_database
from tests.support.ledger import (
    LIMITS,
    balance_of,
    count,
    held,
    hold_of,
    make_tenant,
    release,
    rows,
    run,
    running_process,
    settlement,
)
from tests.support.ledger_months import OldBooks, busy, despite_guards, this_month
from tollkeeper.core.errors import StateConflict
from tollkeeper.core.months import RANDOM_BITS, Month, request_id
from tollkeeper.money.holds.store import MonthClosed
from tollkeeper.money.holds.values import Hold
from tollkeeper.money.months import store as ledger_months
from tollkeeper.money.months.close_digest import close_digest
from tollkeeper.money.months.close_proof import CLOSE_IS_ITS_ROWS
from tollkeeper.money.months.service import MONTHS_AHEAD, LedgerMonths
from tollkeeper.money.unsettled.bulk_resolution import BulkResolution
from tollkeeper.money.verification.service import CLOSES_ARE_UNCHANGED

NOW = this_month()
# Two and three months ago. The fixture `old` has created the partitions of these months.
LAST = NOW.plus(-2)
BEFORE = NOW.plus(-3)
_DAY_S = 86_400


async def _partition_of(old: OldBooks, hold: Hold) -> list[str]:
    """Returns the partitions that contain the hold's reservation, resolution and overage."""
    found = await rows(
        old.process.database,
        """
        SELECT tableoid::regclass::text FROM reservations WHERE id = %(id)s
        UNION ALL SELECT tableoid::regclass::text FROM resolutions WHERE reservation_id = %(id)s
        UNION ALL SELECT tableoid::regclass::text FROM overages WHERE reservation_id = %(id)s
        """.replace("%(id)s", f"'{hold.id}'"),
    )
    return [row[0] for row in found]


# Partitions.


async def test_months_are_made_ahead_and_filled_from_the_default(old: OldBooks) -> None:
    future = NOW.plus(12)
    tenant = await make_tenant(old.process.database, credit=100)
    early = await old.spend(tenant, future, 1, 3)
    stray = await old.spend(tenant, future.plus(60), 1, 1)
    assert await _partition_of(old, early) == [
        "reservations_default",
        "resolutions_default",
        "overages_default",
    ]
    then = (future.first_day + 3) * _DAY_S
    limits = BulkResolution(old.process.database, LIMITS)
    months = LedgerMonths(old.process.database, lambda: then, limits)
    for _ in range(2):
        await months.keep_months()
    assert await _partition_of(old, early) == [
        f"{table}_{future.number}" for table in ("reservations", "resolutions", "overages")
    ]
    assert "reservations_default" in await _partition_of(old, stray)
    async with old.process.database.autocommit() as connection:
        found = await ledger_months.find_months(connection)
    ahead = [future.plus(number) for number in range(MONTHS_AHEAD + 1)]
    assert [month for month in found if month >= future] == ahead
    assert not await old.process.ledger.resolve(settlement(early, 3), early)
    assert await old.verify() == []


async def test_a_month_is_added_beside_live_traffic(old: OldBooks) -> None:
    tenant = await make_tenant(old.process.database, credit=10_000)
    stop = asyncio.Event()

    async def traffic() -> None:
        while not stop.is_set():
            hold = await held(old.process, tenant, 1)
            await old.process.ledger.resolve(settlement(hold, 1), hold)

    callers = [asyncio.create_task(traffic()) for _ in range(4)]
    for number in range(5, 10):
        await old.begin(NOW.plus(number))
    stop.set()
    await asyncio.gather(*callers)
    assert await old.verify() == []


@pytest.mark.parametrize("number", [-24, -1, 0, 1, 24])
async def test_one_resolution_in_whatever_month_the_id_lies(old: OldBooks, number: int) -> None:
    """The clock of the machine that created the id may be wrong by any amount."""
    tenant = await make_tenant(old.process.database, credit=100)
    hold = await old.hold(tenant, NOW.plus(number), 10)
    done = await asyncio.gather(
        *(old.process.ledger.resolve(settlement(hold, 4), hold) for _ in range(3)),
        *(old.process.ledger.resolve(release(hold), hold) for _ in range(3)),
    )
    assert sum(done) == 1
    # A copy goes to the same partition, because the id decides the partition, not the current time.
    for table in ("reservations", "resolutions"):
        copied: LiteralString = "INSERT INTO {0} SELECT * FROM {0} WHERE organization_id = %s"
        with pytest.raises(pg.UniqueViolation):
            await run(old.process.database, copied.format(table), tenant.organization_id)
    assert await count(
        old.process.database,
        "SELECT count(*) FROM resolutions WHERE reservation_id = %s",
        hold.id,
    )
    assert await old.verify() == []


# Closing.


async def test_a_close_is_the_sum_of_its_month(old: OldBooks) -> None:
    tenant = await busy(old)
    before = await balance_of(old.process, tenant)
    closed = await old.months.ledger_close()
    assert (closed.month, closed.state) == (BEFORE, "closed")
    assert closed.close is not None
    assert (closed.close.reservations, closed.close.previous_month) == (4, None)
    [total] = await rows(
        old.process.database,
        """
        SELECT project_id, settled_count, released_count, hold, settled, released,
               overage FROM ledger_close_totals
        """,
    )
    assert total == (tenant.project_id, 3, 1, 70, 44, 26, 3)
    lines = await rows(
        old.process.database, "SELECT line_item, amount FROM ledger_close_lines ORDER BY 1"
    )
    assert lines == [("example/chat, completion", 3 + 9 + 20), ("example/chat, prompt", 15)]
    assert await balance_of(old.process, tenant) == before
    assert await old.verify() == []
    (listed, *_) = await old.months.ledger_months()
    assert (listed.month, listed.state) == (BEFORE, "proven")
    assert await old.verify(full=True) == []


async def test_months_are_closed_in_order_and_when_they_are_over(old: OldBooks) -> None:
    with pytest.raises(StateConflict, match=f"close {BEFORE} first"):
        await old.months.ledger_close(LAST)
    with pytest.raises(StateConflict, match=f"first month of the ledger is {BEFORE}"):
        await old.months.ledger_close(BEFORE.plus(-1))
    await old.months.ledger_close(BEFORE)
    with pytest.raises(StateConflict, match="closed already"):
        await old.months.ledger_close(BEFORE)
    await old.months.ledger_close(LAST)
    # Last month has no partitions and can be closed too, if it has been over for a day. The current
    # month cannot be closed.
    closed: list[Month] = []
    with pytest.raises(StateConflict, match="can be closed when it has been over for a day"):
        while len(closed) < 3:
            closed.append((await old.months.ledger_close()).month)
    assert closed in ([], [LAST.next])
    assert await old.verify() == []


async def test_what_is_not_resolved_keeps_its_month_open(old: OldBooks) -> None:
    tenant = await make_tenant(old.process.database, credit=100)
    running = await old.hold(tenant, BEFORE, 1)
    marked = await old.hold(tenant, BEFORE, 2)
    await old.process.ledger.mark_unsettled(marked, "nobody knows")
    with pytest.raises(StateConflict) as refused:
        await old.months.ledger_close()
    assert "has 2 reservations that are not resolved" in refused.value.message
    assert f"{running.id} (held)" in refused.value.message
    assert f"{marked.id} (unsettled)" in refused.value.message
    # The refused close has changed nothing: reservations of the month can still be resolved.
    for hold in (running, marked):
        assert await old.process.ledger.resolve(settlement(hold, 1), hold)
    assert (await old.months.ledger_close()).state == "closed"
    assert await old.verify() == []


async def test_many_that_are_not_resolved_are_counted(old: OldBooks) -> None:
    tenant = await make_tenant(old.process.database, credit=100)
    for _ in range(7):
        await old.hold(tenant, BEFORE, 1)
    with pytest.raises(StateConflict, match=r"has 7 reservations .* and 2 more"):
        await old.months.ledger_close()


_CHANGES: dict[str, LiteralString] = {
    "a total": "UPDATE ledger_close_totals SET settled = settled - 1, released = released + 1",
    "a deleted total": "DELETE FROM ledger_close_totals",
    "a line": "UPDATE ledger_close_lines SET amount = amount + 1",
    "a close": "UPDATE ledger_closes SET reservations = 7",
    "a deleted close": "DELETE FROM ledger_closes",
    "all totals": "TRUNCATE ledger_close_totals",
    "a step": "UPDATE ledger_close_steps SET done_at = now()",
    "a reservation": "UPDATE reservations SET model = 'other'",
    "a deleted overage": "DELETE FROM overages",
    "a resolution": "UPDATE resolutions SET resolved_by = 'somebody'",
    "a total more": (
        "INSERT INTO ledger_close_totals SELECT gen_random_uuid(), month, project_id,"
        " settled_count, released_count, hold, settled, released, overage"
        " FROM ledger_close_totals"
    ),
    "an overage more": (
        "INSERT INTO overages SELECT organization_id, reservation_id, 1 FROM resolutions"
        " WHERE kind = 'released'"
    ),
}


@pytest.fixture(scope="module")
async def closed(shared_conninfo: str) -> AsyncIterator[OldBooks]:
    """Returns a ledger with one closed month, for all tests of this module."""
    conninfo = own_database(shared_conninfo, f"closed_{secrets.token_hex(4)}")
    async with running_process(conninfo) as process:
        books = OldBooks(process)
        await books.begin(BEFORE)
        tenant = await make_tenant(process.database, credit=100)
        await books.spend(tenant, BEFORE, 10, 13)
        await process.ledger.resolve(release(await books.hold(tenant, BEFORE, 5)))
        await books.months.ledger_close()
        assert await books.verify() == []
        yield books


@pytest.mark.parametrize("what", _CHANGES)
async def test_the_database_refuses_to_change(closed: OldBooks, what: str) -> None:
    with pytest.raises(pg.RestrictViolation):
        await run(closed.process.database, _CHANGES[what])


@pytest.mark.parametrize("table", ["ledger_close_totals", "ledger_close_lines", "ledger_closes"])
async def test_verify_finds_what_somebody_changed_all_the_same(
    closed: OldBooks, table: str
) -> None:
    """The owner of the database can disable all triggers that protect closed months."""
    change: dict[str, LiteralString] = {
        "ledger_close_totals": "UPDATE ledger_close_totals SET released_count = released_count + 1",
        "ledger_close_lines": "UPDATE ledger_close_lines SET day = day + 1",
        "ledger_closes": "UPDATE ledger_closes SET reservations = reservations + 1",
    }
    back: dict[str, LiteralString] = {
        "ledger_close_totals": "UPDATE ledger_close_totals SET released_count = released_count - 1",
        "ledger_close_lines": "UPDATE ledger_close_lines SET day = day - 1",
        "ledger_closes": "UPDATE ledger_closes SET reservations = reservations - 1",
    }
    await despite_guards(closed, change[table])
    try:
        assert (CLOSES_ARE_UNCHANGED, str(BEFORE)) in await closed.verify()
        proofs = [name for name, _ in await closed.verify(full=True) if name == CLOSE_IS_ITS_ROWS]
        assert bool(proofs) is (table != "ledger_closes")
    finally:
        await despite_guards(closed, back[table])
    assert await closed.verify(full=True) == []


async def test_a_digest_covers_the_close_before(old: OldBooks) -> None:
    await busy(old)
    first = (await old.months.ledger_close()).close
    second = (await old.months.ledger_close()).close
    assert first is not None
    assert second is not None
    assert second.previous_month == first.month
    async with old.process.database.transaction() as connection:
        for previous, same in ((first.digest, True), (second.digest, False), (None, False)):
            digest = await close_digest(connection, LAST, second.reservations, previous)
            assert (digest == second.digest) is same


async def test_totals_that_are_wrong_are_not_proven(old: OldBooks) -> None:
    """The totals of a close are wrong, but its digest was computed from these wrong totals."""
    await busy(old)
    await old.months.ledger_close()
    await despite_guards(
        old, "UPDATE ledger_close_totals SET settled = settled - 1, released = released + 1"
    )
    async with old.process.database.transaction() as connection:
        digest = await close_digest(connection, BEFORE, 4, None)
        await connection.execute("SET LOCAL session_replication_role TO replica")
        await connection.execute("UPDATE ledger_closes SET digest = %s", (digest,))
    found = await old.verify()
    assert CLOSE_IS_ITS_ROWS in {name for name, _ in found}
    assert CLOSES_ARE_UNCHANGED not in {name for name, _ in found}
    await old.export(BEFORE)
    with pytest.raises(StateConflict, match="not proven"):
        await old.months.ledger_drop(BEFORE)


async def test_a_hold_of_a_closed_month_is_refused(old: OldBooks) -> None:
    """The clock of the machine shows a past month."""
    tenant = await make_tenant(old.process.database, credit=100)
    await old.months.ledger_close()
    with pytest.raises(MonthClosed, match="clock of the gateway is wrong"):
        await old.hold(tenant, BEFORE, 1)
    # A wrong time in a month that is not closed causes no error.
    odd = replace(hold_of(tenant, 1), id=request_id(1000, secrets.randbits(RANDOM_BITS)))
    for hold in (odd, hold_of(tenant, 1)):
        assert (await old.process.ledger.hold(hold)).refusal is None
    assert (await balance_of(old.process, tenant)).held == 2
