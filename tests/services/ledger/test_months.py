"""Months of the ledger: made ahead, closed, proven, exported and dropped, beside live traffic."""

import asyncio
import csv
import hashlib
import io
import secrets
from collections.abc import AsyncIterator
from typing import Any, LiteralString

import pytest
from msgspec.structs import replace
from psycopg import errors as pg

from tests.support.databases import own_database
from tests.support.ledger import (
    LedgerTenant,
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
from tests.support.ledger_months import OldBooks, this_month
from tollkeeper.domain.errors import NotFound, StateConflict
from tollkeeper.domain.ledger import Hold
from tollkeeper.domain.months import RANDOM_BITS, Month, request_id
from tollkeeper.services.ledger.bulk_resolution import BulkResolution
from tollkeeper.services.ledger.close_digest import close_digest
from tollkeeper.services.ledger.months import MONTHS_AHEAD, LedgerMonths
from tollkeeper.services.ledger.verification import CLOSES_ARE_UNCHANGED
from tollkeeper.storage import ledger_months
from tollkeeper.storage.close_proof import CLOSE_IS_ITS_ROWS
from tollkeeper.storage.ledger_export import COLUMNS
from tollkeeper.storage.ledger_store import MonthClosed

NOW = this_month()
LAST = NOW.plus(-1)
BEFORE = NOW.plus(-2)
_DAY_S = 86_400


@pytest.fixture
async def old(shared_conninfo: str) -> AsyncIterator[OldBooks]:
    """Books of its own with two months that are over, right when the test begins and ends."""
    conninfo = own_database(shared_conninfo, f"months_{secrets.token_hex(4)}")
    async with running_process(conninfo) as process:
        books = OldBooks(process)
        await books.begin(BEFORE, LAST)
        yield books


async def _partition_of(old: OldBooks, hold: Hold) -> list[str]:
    found = await rows(
        old.process.database,
        """
        SELECT tableoid::regclass::text FROM reservations WHERE id = %(id)s
        UNION ALL SELECT tableoid::regclass::text FROM resolutions WHERE reservation_id = %(id)s
        UNION ALL SELECT tableoid::regclass::text FROM overages WHERE reservation_id = %(id)s
        """.replace("%(id)s", f"'{hold.id}'"),
    )
    return [row[0] for row in found]


async def _busy(old: OldBooks) -> LedgerTenant:
    """Calls in three months: settled, released, with overage, and once unsettled."""
    tenant = await make_tenant(old.process.database, credit=1000)
    for month in (BEFORE, LAST, NOW):
        await old.spend(tenant, month, 10, 4)
        await old.spend(tenant, month, 10, 13)
        released = await old.hold(tenant, month, 20)
        await old.process.ledger.resolve(release(released))
        marked = await old.hold(tenant, month, 30)
        await old.process.ledger.mark_unsettled(marked, "nobody knows")
        await old.process.ledger.resolve(settlement(marked, 30), marked)
    return tenant


async def _end(old: OldBooks, month: Month) -> None:
    """Everything up to the drop."""
    await old.months.ledger_close(month)
    assert await old.verify() == []
    await old.export(month)
    await old.months.ledger_drop(month)


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
    limits = BulkResolution(old.process.database, old.process.store._limits)
    months = LedgerMonths(old.process.database, lambda: then, limits)
    for _ in range(2):
        await months.keep_months()
    assert await _partition_of(old, early) == [
        f"{table}_{future.number}" for table in ("reservations", "resolutions", "overages")
    ]
    assert "reservations_default" in await _partition_of(old, stray)
    async with old.process.database.reading() as connection:
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
    """The clock of the machine that made the id may have shown anything."""
    tenant = await make_tenant(old.process.database, credit=100)
    hold = await old.hold(tenant, NOW.plus(number), 10)
    done = await asyncio.gather(
        *(old.process.ledger.resolve(settlement(hold, 4), hold) for _ in range(3)),
        *(old.process.ledger.resolve(release(hold), hold) for _ in range(3)),
    )
    assert sum(done) == 1
    # The partition in which it would lie if the clock of now decided.
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
    tenant = await _busy(old)
    before = await balance_of(old.process, tenant)
    closed = await old.months.ledger_close()
    assert (closed.month, closed.state) == (BEFORE, "closed")
    assert closed.close is not None
    assert (closed.close.reservations, closed.close.previous_month) == (4, None)
    [total] = await rows(
        old.process.database,
        """
        SELECT project_id, spending_month, settled_count, released_count, hold, settled, released,
               overage FROM ledger_close_totals
        """,
    )
    assert total == (tenant.project_id, NOW.number, 3, 1, 70, 44, 26, 3)
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
    with pytest.raises(StateConflict, match=f"begin with {BEFORE}"):
        await old.months.ledger_close(BEFORE.plus(-1))
    await old.months.ledger_close(BEFORE)
    with pytest.raises(StateConflict, match="closed already"):
        await old.months.ledger_close(BEFORE)
    if await _is_over(old, LAST):
        await old.months.ledger_close(LAST)
        with pytest.raises(StateConflict, match="over for a day"):
            await old.months.ledger_close()


async def _is_over(old: OldBooks, month: Month) -> bool:
    """On the first day of a month, the one before cannot be closed yet."""
    async with old.process.database.reading() as connection:
        return month < await ledger_months.read_current(connection, seconds_ago=_DAY_S)


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
    # The refusal has changed nothing: the month goes on.
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
        " spending_month, settled_count, released_count, hold, settled, released, overage"
        " FROM ledger_close_totals"
    ),
    "an overage more": (
        "INSERT INTO overages SELECT organization_id, reservation_id, 1 FROM resolutions"
        " WHERE kind = 'released'"
    ),
}


@pytest.fixture(scope="module")
async def closed(shared_conninfo: str) -> AsyncIterator[OldBooks]:
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
    """The owner of the database can put every guard aside."""
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
    await _despite_guards(closed, change[table])
    try:
        assert (CLOSES_ARE_UNCHANGED, str(BEFORE)) in await closed.verify()
        proofs = [name for name, _ in await closed.verify(full=True) if name == CLOSE_IS_ITS_ROWS]
        assert bool(proofs) is (table != "ledger_closes")
    finally:
        await _despite_guards(closed, back[table])
    assert await closed.verify(full=True) == []


async def _despite_guards(books: OldBooks, statement: LiteralString) -> None:
    async with books.process.database.transaction() as connection:
        await connection.execute("SET LOCAL session_replication_role TO replica")
        await connection.execute(statement)


async def test_a_digest_covers_the_close_before(old: OldBooks) -> None:
    await _busy(old)
    first = (await old.months.ledger_close()).close
    if not await _is_over(old, LAST):
        return
    second = (await old.months.ledger_close()).close
    assert first is not None
    assert second is not None
    assert second.previous_month == first.month
    async with old.process.database.transaction() as connection:
        for previous, same in ((first.digest, True), (second.digest, False), (None, False)):
            digest = await close_digest(connection, LAST, second.reservations, previous)
            assert (digest == second.digest) is same


async def test_totals_that_are_wrong_are_not_proven(old: OldBooks) -> None:
    """A close whose digest is right and whose totals were wrong from the beginning."""
    await _busy(old)
    await old.months.ledger_close()
    await _despite_guards(
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
    """A machine whose clock shows a month that is over."""
    tenant = await make_tenant(old.process.database, credit=100)
    await old.months.ledger_close()
    with pytest.raises(MonthClosed, match="clock of the gateway is wrong"):
        await old.hold(tenant, BEFORE, 1)
    # Another time that is wrong, but not closed, does no harm.
    odd = replace(hold_of(tenant, 1), id=request_id(1000, secrets.randbits(RANDOM_BITS)))
    for hold in (odd, hold_of(tenant, 1)):
        assert (await old.process.ledger.hold(hold)).refusal is None
    assert (await balance_of(old.process, tenant)).held == 2


# Export and drop.


async def test_an_export_has_every_row_once_and_always_the_same(old: OldBooks) -> None:
    tenant = await make_tenant(old.process.database, credit=10_000)
    holds = [await old.spend(tenant, BEFORE, 10, cost) for cost in (0, 4, 10, 13)]
    odd = await old.hold(tenant, BEFORE, 7)
    await old.process.ledger.mark_unsettled(odd, 'said "nothing",\nand left')
    await old.process.ledger.resolve(release(odd))
    await old.months.ledger_close()
    export, text = await old.export(BEFORE)
    assert (export.rows, export.digest) == (5, hashlib.sha256(text).digest())
    header, *found = csv.reader(io.StringIO(text.decode(), newline=""))
    assert tuple(header) == COLUMNS
    records: list[dict[str, Any]] = [dict(zip(header, row, strict=True)) for row in found]
    assert [record["reservation_id"] for record in records] == sorted(
        str(hold.id) for hold in [*holds, odd]
    )
    by_id = {record["reservation_id"]: record for record in records}
    over = by_id[str(holds[3].id)]
    assert (over["settled_picousd"], over["overage_picousd"], over["resolution"]) == (
        "10",
        "3",
        "settled",
    )
    assert by_id[str(odd.id)]["unsettled_reason"] == 'said "nothing",\nand left'
    again, same = await old.export(BEFORE)
    assert (again, same) == (export, text)


async def test_only_what_is_closed_proven_and_exported_is_dropped(old: OldBooks) -> None:
    await _busy(old)
    for attempt in (old.months.ledger_drop(BEFORE), old.export(BEFORE)):
        with pytest.raises(StateConflict, match="is not closed"):
            await attempt
    await old.months.ledger_close()
    with pytest.raises(StateConflict, match="is not proven"):
        await old.months.ledger_drop(BEFORE)
    assert await old.verify() == []
    with pytest.raises(StateConflict, match="is not exported"):
        await old.months.ledger_drop(BEFORE)
    await old.export(BEFORE)
    assert (await old.months.ledger_drop(BEFORE)).state == "dropped"
    for attempt in (old.months.ledger_drop(BEFORE), old.export(BEFORE)):
        with pytest.raises(StateConflict, match=rf"exported to {BEFORE}\.csv .* and dropped"):
            await attempt


async def test_the_books_are_right_without_the_dropped_rows(old: OldBooks) -> None:
    tenant = await _busy(old)
    await run(
        old.process.database,
        "UPDATE accounts SET cap = 200, cap_period = 'total' WHERE organization_id = %s",
        tenant.organization_id,
    )
    before = await balance_of(old.process, tenant)
    await _end(old, BEFORE)
    assert not await rows(
        old.process.database,
        "SELECT relname FROM pg_class WHERE relname ~ %s",
        f"^(reservations|resolutions|overages)_{BEFORE.number}",
    )
    assert await old.verify(full=True) == []
    assert await balance_of(old.process, tenant) == before
    await old.spend(tenant, NOW, 10, 12)
    assert await old.verify() == []
    # The totals are needed: without them the accounts are not the sum of what is left.
    await _despite_guards(old, "DELETE FROM ledger_close_totals")
    assert "balances are the sum of their rows" in {name for name, _ in await old.verify()}


async def test_a_dropped_reservation_gets_a_clear_answer(old: OldBooks) -> None:
    tenant = await make_tenant(old.process.database, credit=100)
    hold = await old.spend(tenant, BEFORE, 10, 4)
    await _end(old, BEFORE)
    before = await balance_of(old.process, tenant)
    with pytest.raises(NotFound, match=rf"no reservation {hold.id}.*exported to {BEFORE}\.csv"):
        await old.reconciliation.ledger_resolve(hold.id, settle_picousd=None)
    # A settlement that comes again after all that time is not charged a second time.
    assert not await old.process.ledger.resolve(settlement(hold, 4), hold)
    assert not await old.process.ledger.mark_unsettled(hold, "late")
    with pytest.raises(MonthClosed):
        await old.hold(tenant, BEFORE, 1)
    assert await balance_of(old.process, tenant) == before
    assert await old.verify() == []


async def test_what_waits_to_be_folded_is_folded_before_the_drop(old: OldBooks) -> None:
    """A fold of a reservation that was unsettled needs its mark, which is dropped."""
    tenant = await make_tenant(old.process.database, credit=100)
    hold = await old.hold(tenant, BEFORE, 10)
    await old.process.ledger.mark_unsettled(hold, "nobody knows")
    await balance_of(old.process, tenant)
    await old.process.ledger.resolve(settlement(hold, 4), hold)
    await _end(old, BEFORE)
    found = await balance_of(old.process, tenant)
    assert (found.available, found.held, found.unsettled, found.settled) == (96, 0, 0, 4)
    assert await old.verify() == []


async def test_a_drop_beside_live_traffic(old: OldBooks) -> None:
    tenant = await _busy(old)
    stop = asyncio.Event()

    async def traffic() -> None:
        while not stop.is_set():
            hold = await held(old.process, tenant, 1)
            await old.process.ledger.resolve(settlement(hold, 0), hold)

    callers = [asyncio.create_task(traffic()) for _ in range(4)]
    await _end(old, BEFORE)
    stop.set()
    await asyncio.gather(*callers)
    assert await old.verify(full=True) == []


async def test_nobody_changes_months_while_somebody_verifies(old: OldBooks) -> None:
    await _busy(old)
    told: list[tuple[int, int]] = []
    async with (
        old.process.database.reading() as connection,
        ledger_months.keeping_months(connection) as kept,
    ):
        assert kept
        with pytest.raises(StateConflict, match="Another command works on the months"):
            await old.months.ledger_close()
        # Upkeep comes again later, and another verification is welcome.
        await old.months.keep_months()
        verify = old.reconciliation.ledger_verify
        assert await verify(on_progress=lambda done, of: told.append((done, of))) == []
    assert [done for done, _ in told] == list(range(1, told[-1][1] + 1))
    assert (await old.months.ledger_close()).state == "closed"
