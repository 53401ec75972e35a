"""Tests the export and the drop of ledger months: the exported file, and the ledger after the drop."""

import asyncio
import csv
import hashlib
import io
from typing import Any

import pytest
from psycopg import sql

from tests.support.activity_records import written
from tests.support.ledger import LIMITS, balance_of, held, make_tenant, release, rows, settlement
from tests.support.ledger_months import OldBooks, busy, despite_guards, end_month, this_month
from tollkeeper.core.activity import ActivityRecord
from tollkeeper.core.errors import NotFound, StateConflict
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.caps.service import Caps
from tollkeeper.money.holds import service as holds
from tollkeeper.money.holds.store import MonthClosed
from tollkeeper.money.holds.values import Hold
from tollkeeper.money.months import store as ledger_months
from tollkeeper.money.months.export import COLUMNS
from tollkeeper.reports.activity.service import Activity
from tollkeeper.tenants.audit.rule import Actor, ActorKind
from tollkeeper.tenants.audit.service import Audit, acting_as

NOW = this_month()
# Two and three months ago. The fixture `old` has created the partitions of these months.
LAST = NOW.plus(-2)
BEFORE = NOW.plus(-3)


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


async def test_the_audit_names_who_closed_exported_and_dropped_a_month(old: OldBooks) -> None:
    await busy(old)
    ada = Actor(ActorKind.CONSOLE, "Ada (sub-1)")
    with acting_as(ada):
        await end_month(old, BEFORE)
    page = await Audit(old.process.database, unix_now, retention_days=1).audit_list(actor="ada (")
    assert {entry.actor for entry in page.entries} == {ada}
    changes = [entry.change for entry in reversed(page.entries)]
    steps = ["ledger_close", "ledger_exported", "ledger_drop"]
    assert [change.operation for change in changes] == steps
    assert {(change.organization_id, change.object_id) for change in changes} == {
        (None, str(BEFORE))
    }
    assert changes[1].after is not None
    assert changes[1].after["file_name"] == f"{BEFORE}.csv"
    assert changes[2].before == {"reservations": 4}


async def test_only_what_is_closed_proven_and_exported_is_dropped(old: OldBooks) -> None:
    await busy(old)
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
    tenant = await busy(old)
    await Caps(old.process.database, LIMITS).cap_set(tenant.organization_id, 200, CapPeriod.TOTAL)
    before = await balance_of(old.process, tenant)
    await end_month(old, BEFORE)
    assert not await rows(
        old.process.database,
        "SELECT relname FROM pg_class WHERE relname ~ %s",
        f"^(reservations|resolutions|overages)_{BEFORE.number}",
    )
    assert await old.verify(full=True) == []
    assert await balance_of(old.process, tenant) == before
    await old.spend(tenant, NOW, 10, 12)
    assert await old.verify() == []
    # Without the stored totals, the accounts differ from the sums of the remaining rows.
    await despite_guards(old, "DELETE FROM ledger_close_totals")
    assert "balances are the sum of their rows" in {name for name, _ in await old.verify()}


async def test_a_dropped_reservation_gets_a_clear_answer(old: OldBooks) -> None:
    tenant = await make_tenant(old.process.database, credit=100)
    hold = await old.spend(tenant, BEFORE, 10, 4)
    await end_month(old, BEFORE)
    before = await balance_of(old.process, tenant)
    with pytest.raises(NotFound, match=rf"no reservation {hold.id}.*exported to {BEFORE}\.csv"):
        await old.reconciliation.ledger_resolve(hold.id, settle_picousd=None)
    # A settlement that is repeated after the drop is not charged again.
    assert not await old.process.ledger.resolve(settlement(hold, 4), hold)
    assert not await old.process.ledger.mark_unsettled(hold, "late")
    with pytest.raises(MonthClosed):
        await old.hold(tenant, BEFORE, 1)
    assert await balance_of(old.process, tenant) == before
    assert await old.verify() == []


async def test_what_waits_to_be_folded_is_folded_before_the_drop(old: OldBooks) -> None:
    """To fold a reservation that was unsettled, the gateway needs its mark, which the drop deletes."""
    tenant = await make_tenant(old.process.database, credit=100)
    hold = await old.hold(tenant, BEFORE, 10)
    await old.process.ledger.mark_unsettled(hold, "nobody knows")
    await balance_of(old.process, tenant)
    await old.process.ledger.resolve(settlement(hold, 4), hold)
    await end_month(old, BEFORE)
    found = await balance_of(old.process, tenant)
    assert (found.available, found.held, found.unsettled, found.settled) == (96, 0, 0, 4)
    assert await old.verify() == []


async def test_a_drop_beside_live_traffic(old: OldBooks) -> None:
    tenant = await busy(old)
    stop = asyncio.Event()

    async def traffic() -> None:
        while not stop.is_set():
            hold = await held(old.process, tenant, 1)
            await old.process.ledger.resolve(settlement(hold, 0), hold)

    callers = [asyncio.create_task(traffic()) for _ in range(4)]
    await end_month(old, BEFORE)
    stop.set()
    await asyncio.gather(*callers)
    assert await old.verify(full=True) == []


@pytest.mark.parametrize("table", ["reservations", "unfolded"])
async def test_a_call_waits_while_the_tables_are_locked_for_a_change_of_months(
    old: OldBooks, table: str
) -> None:
    """The call waits longer than `_LOCK_WAIT_S`, the time that the common queue waits for an account."""
    tenant = await busy(old)
    async with old.process.database.transaction() as connection:
        name = sql.Identifier(table)
        await connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(name))
        holding = asyncio.create_task(held(old.process, tenant, 1))
        await asyncio.wait([holding], timeout=5 * holds._LOCK_WAIT_S)
        assert not holding.done()
    hold = await holding
    assert await old.process.ledger.resolve(settlement(hold, 0), hold)
    assert await old.verify() == []


async def test_nobody_changes_months_while_somebody_verifies(old: OldBooks) -> None:
    await busy(old)
    told: list[tuple[int, int]] = []
    async with (
        old.process.database.autocommit() as connection,
        ledger_months.preventing_month_changes(connection) as kept,
    ):
        assert kept
        with pytest.raises(StateConflict, match="Another command works on the months"):
            await old.months.ledger_close()
        # Upkeep skips its work without an error, and another verification can run.
        await old.months.keep_months()
        verify = old.reconciliation.ledger_verify
        assert await verify(on_progress=lambda done, of: told.append((done, of))) == []
    assert [done for done, _ in told] == list(range(1, told[-1][1] + 1))
    assert (await old.months.ledger_close()).state == "closed"


async def test_the_record_of_a_dropped_call_says_so(old: OldBooks) -> None:
    tenant = await make_tenant(old.process.database, credit=100)
    holds = [await old.hold(tenant, BEFORE, 10) for _ in range(3)]
    for hold in holds:
        await old.process.ledger.mark_unsettled(hold, "nobody knows")
        await old.process.ledger.resolve(settlement(hold, 4), hold)
    activity = Activity(old.process.database, unix_now, retention_days=30)
    settled, unsettled, missing = holds
    for hold, settlement_then in ((settled, "settled"), (unsettled, "unsettled")):
        await written(activity, _record(hold, settlement_then))
    await end_month(old, BEFORE)
    assert (await activity.activity_show(settled.id)).settlement == "settled"
    found = await activity.activity_show(unsettled.id)
    assert found.settlement == "dropped"
    assert f"exported to {BEFORE}.csv" in (found.unsettled_reason or "")
    with pytest.raises(NotFound, match=rf"no request {missing.id}.*exported to {BEFORE}\.csv"):
        await activity.activity_show(missing.id)


def _record(hold: Hold, settled: str) -> ActivityRecord:
    return ActivityRecord(
        request_id=str(hold.id),
        organization_id=hold.organization_id,
        project_id=hold.project_id,
        key_id=hold.key_id,
        operation="chat_create",
        model=hold.model,
        streamed=False,
        started_at_ms=unix_now() * 1000,
        duration_us=1000,
        first_piece_us=None,
        status=200,
        error_code=None,
        finish="stop",
        estimated=False,
        hold_picousd=10,
        cost_picousd=4,
        settlement=settled,
        backend="cluster",
        replica=None,
    )
