"""Tests that caps stay correct when ledger months are closed and dropped."""

import pytest

from tests.support.ledger import LIMITS, LedgerTenant, fold, held, hold_of, make_tenant
from tests.support.ledger_months import OldBooks, end_month, this_month
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.caps.service import Caps
from tollkeeper.money.holds.rule import Refusal

# The tests hold calls today whose ids are of this past month, as a machine with a slow clock would.
# These calls count for today's caps, and their rows are dropped with the past month.
BEFORE = this_month().plus(-3)


async def _remaining(caps: Caps, tenant: LedgerTenant) -> list[int]:
    return [use.remaining_picousd for use in await caps.cap_show(tenant.organization_id)]


@pytest.mark.parametrize("period", CapPeriod)
async def test_a_period_outlives_the_rows_of_a_dropped_month(
    old: OldBooks, period: CapPeriod
) -> None:
    caps = Caps(old.process.database, LIMITS)
    tenant = await make_tenant(old.process.database, credit=1000)
    await caps.cap_set(tenant.organization_id, 50, period, key_id=tenant.key_id)
    await old.spend(tenant, BEFORE, 10, 8)
    await old.spend(tenant, BEFORE, 10, 13)
    await held(old.process, tenant, 5)
    await old.months.ledger_close()
    assert await old.verify() == []
    # A cap that is set after the close counts the rows that are still there.
    await caps.cap_set(tenant.organization_id, 60, CapPeriod.DAY)
    assert await _remaining(caps, tenant) == [34, 24]
    assert await old.verify(full=True) == []
    await old.export(BEFORE)
    await old.months.ledger_drop(BEFORE)
    assert await _remaining(caps, tenant) == [34, 24]
    assert await old.verify() == []
    await fold(old.process, tenant)
    await held(old.process, tenant, 20)
    assert await _remaining(caps, tenant) == [14, 4]
    refused = await old.process.ledger.hold(hold_of(tenant, 5))
    assert refused.refusal is Refusal.KEY_CAP
    assert await old.verify() == []


async def test_what_waits_to_be_folded_is_counted_before_its_month_is_dropped(
    old: OldBooks,
) -> None:
    caps = Caps(old.process.database, LIMITS)
    tenant = await make_tenant(old.process.database, credit=1000)
    await caps.cap_set(tenant.organization_id, 50, CapPeriod.DAY, key_id=tenant.key_id)
    await old.spend(tenant, BEFORE, 10, 8)
    await end_month(old, BEFORE)
    assert await _remaining(caps, tenant) == [42]
    assert await old.verify() == []


async def test_a_new_total_counts_dropped_months(old: OldBooks) -> None:
    caps = Caps(old.process.database, LIMITS)
    tenant = await make_tenant(old.process.database, credit=1000)
    await old.spend(tenant, BEFORE, 10, 13)
    await end_month(old, BEFORE)
    await held(old.process, tenant, 5)
    await caps.cap_set(tenant.organization_id, 50, CapPeriod.TOTAL)
    await caps.cap_set(tenant.organization_id, 40, CapPeriod.TOTAL, project_id=tenant.project_id)
    await caps.cap_set(tenant.organization_id, 30, CapPeriod.TOTAL, key_id=tenant.key_id)
    assert await _remaining(caps, tenant) == [32, 22, 12]
    assert await old.verify() == []
    refused = await old.process.ledger.hold(hold_of(tenant, 13))
    assert refused.refusal is Refusal.KEY_CAP
    await held(old.process, tenant, 12)
    assert await old.verify() == []
