"""Tests the comparison of the request log with the ledger: races with settlements, and past months."""

import asyncio
import secrets

from msgspec.structs import replace

from tests.support.ledger import (
    LIMITS,
    MODEL,
    LedgerTenant,
    Process,
    balance_of,
    hold_of,
    make_tenant,
    rows,
    settlement,
)
from tests.support.ledger_months import OldBooks, this_month
from tests.support.proof import Proof
from tollkeeper.core.months import RANDOM_BITS, Month, request_id
from tollkeeper.money.holds.values import Hold
from tollkeeper.money.log_comparison.log_file import LoggedCall
from tollkeeper.money.log_comparison.service import LogComparison, Problem, RequestLogComparison
from tollkeeper.money.settlement.reservations import CallKey
from tollkeeper.money.unsettled.bulk_resolution import BulkResolution

_BEFORE = this_month().plus(-3)
_MS_PER_DAY = 86_400_000


def _logged(hold: Hold, cost: int) -> LoggedCall:
    key = CallKey(hold.organization_id, hold.id, hold.project_id, hold.key_id)
    return LoggedCall(key, MODEL, cost)


def _lost(tenant: LedgerTenant, month: Month) -> Hold:
    """Returns the hold of a call on the second day of the month. The ledger does not contain it."""
    identity = request_id((month.first_day + 1) * _MS_PER_DAY, secrets.randbits(RANDOM_BITS))
    return replace(hold_of(tenant, 5), id=identity)


async def _compare(process: Process, *calls: LoggedCall, book: bool = True) -> LogComparison:
    comparison = RequestLogComparison(
        process.database, process.id, BulkResolution(process.database, LIMITS)
    )
    return await comparison.ledger_compare_log(calls, book=book)


async def test_each_call_is_booked_once_beside_its_late_settlement(
    process: Process, other_process: Process, proof: Proof
) -> None:
    """A gateway that survived the failover may settle the call at the same time, because it restores
    the lost hold itself."""
    rounds = proof.size(quick=4, long=100)
    for _ in range(rounds):
        tenant = await make_tenant(process.database, credit=1000)
        lost = [hold_of(tenant, 10) for _ in range(10)]
        calls = [_logged(hold, 4) for hold in lost]
        settling = [other_process.ledger.resolve(settlement(hold, 4), hold) for hold in lost]
        first, second, ended = await asyncio.gather(
            _compare(process, *calls),
            _compare(other_process, *reversed(calls)),
            asyncio.gather(*settling),
        )
        assert first.remaining_differences == second.remaining_differences == 0
        assert first.booked + second.booked + sum(ended) == len(lost)
        assert await balance_of(process, tenant) == await balance_of(other_process, tenant)
        assert (await balance_of(process, tenant)).settled == 4 * len(lost)
    proof.count("races of the request log with settlements", 10 * rounds)


async def test_a_call_of_a_month_that_is_not_closed_lies_on_its_day(old: OldBooks) -> None:
    process = old.process
    tenant = await make_tenant(process.database, credit=1000)
    assert (await _compare(process, _logged(_lost(tenant, _BEFORE), 7))).booked == 1
    costs = await rows(
        process.database,
        "SELECT day, amount_picousd FROM cost_rollup WHERE organization_id = %s",
        tenant.organization_id,
    )
    assert costs == [(_BEFORE.first_day + 1, 7)]
    assert await old.verify() == []


async def test_a_closed_month_is_compared_and_not_changed(old: OldBooks) -> None:
    process = old.process
    tenant = await make_tenant(process.database, credit=1000)
    spent = await old.spend(tenant, _BEFORE, 10, 7)
    await old.months.ledger_close(_BEFORE)
    lost = _lost(tenant, _BEFORE)
    found = await _compare(process, _logged(spent, 7), _logged(lost, 7))
    assert (found.calls, found.booked, found.remaining_differences) == (2, 0, 1)
    assert found.differences[lost.id].problem is Problem.MONTH_CLOSED
    assert await old.verify() == []
    await old.export(_BEFORE)
    await old.months.ledger_drop(_BEFORE)
    gone = await _compare(process, _logged(spent, 7), _logged(lost, 7))
    assert (gone.calls, gone.dropped, gone.remaining_differences) == (2, 2, 0)
