"""Tests the resolution of many unsettled reservations at once: each is resolved once, and open holds do
not change."""

import asyncio
from typing import NoReturn

import pytest

from tests.support.ledger import (
    LIMITS,
    MODEL,
    Balance,
    LedgerTenant,
    Process,
    balance_of,
    held,
    hold_of,
    make_process,
    make_tenant,
    rows,
    run,
    settlement,
)
from tests.support.proof import Proof
from tollkeeper.core.views import ReservationEntry, ReservationStatus
from tollkeeper.money.holds.values import Hold
from tollkeeper.money.settlement import reservations
from tollkeeper.money.unsettled.bulk_resolution import (
    Backlog,
    BulkAction,
    BulkResolution,
    Resolved,
    UnsettledRule,
)

_HOUR_S = 3600
_SETTLE, _RELEASE = BulkAction.SETTLE_HOLD, BulkAction.RELEASE


async def _unsettled(
    process: Process,
    tenant: LedgerTenant,
    amount: int = 10,
    *,
    age_s: int = 2 * _HOUR_S,
    reason: str = "nobody knows",
) -> Hold:
    hold = await held(process, tenant, amount)
    await process.ledger.mark_unsettled(hold, reason)
    await run(
        process.database,
        "UPDATE unsettled_marks SET marked_at = marked_at - make_interval(secs => %s)"
        " WHERE reservation_id = %s",
        age_s,
        hold.id,
    )
    return hold


async def _backlog(process: Process, tenant: LedgerTenant, older_than_s: int = _HOUR_S) -> Backlog:
    return await BulkResolution(process.database, LIMITS).ledger_backlog(
        older_than_s=older_than_s, organization_id=tenant.organization_id
    )


async def _resolve(process: Process, tenant: LedgerTenant, action: BulkAction) -> Resolved:
    found = await _backlog(process, tenant)
    return await BulkResolution(process.database, LIMITS, batch_size=2).ledger_resolve_all(
        found.selection, action
    )


async def _entry(process: Process, hold: Hold) -> ReservationEntry:
    async with process.database.autocommit() as connection:
        found = await reservations.find(connection, hold.id)
    assert found is not None
    return found


async def test_settled_at_their_holds(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    holds = [await _unsettled(process, tenant, amount) for amount in (10, 20, 0)]
    assert await _resolve(process, tenant, _SETTLE) == Resolved(3, 30)
    assert await balance_of(process, tenant) == Balance(70, 0, 0, 30, 0)
    for hold in holds:
        entry = await _entry(process, hold)
        assert entry.status is ReservationStatus.SETTLED
        assert entry.cost_picousd == hold.hold_picousd
        assert entry.resolved_by == "operator, in bulk"
    costs = await rows(
        process.database,
        "SELECT line_item, amount_picousd FROM cost_rollup WHERE organization_id = %s",
        tenant.organization_id,
    )
    assert costs == [(f"{MODEL}, other", 30)]
    assert await _resolve(process, tenant, _RELEASE) == Resolved(0, 0)


async def test_released(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    hold = await _unsettled(process, tenant)
    assert await _resolve(process, tenant, _RELEASE) == Resolved(1, 10)
    assert await balance_of(process, tenant) == Balance(100, 0, 0, 0, 0)
    assert (await _entry(process, hold)).status is ReservationStatus.RELEASED


@pytest.mark.parametrize("action", BulkAction)
async def test_what_is_held_is_not_touched(process: Process, action: BulkAction) -> None:
    """Open holds of a live or a dead process do not change, however old they are."""
    tenant = await make_tenant(process.database, credit=100)
    running = [
        await held(process, tenant, 10),
        await held(make_process(process.database), tenant, 5),
    ]
    await run(
        process.database,
        "UPDATE reservations SET held_at = held_at - interval '90 days' WHERE organization_id = %s",
        tenant.organization_id,
    )
    unknown = await _unsettled(process, tenant, 20)
    found = await _backlog(process, tenant)
    assert (found.reservations, found.hold_picousd) == (1, 20)
    assert await _resolve(process, tenant, action) == Resolved(1, 20)
    assert [(await _entry(process, hold)).status for hold in running] == ["held", "held"]
    assert (await _entry(process, unknown)).status != "held"
    assert await process.ledger.resolve(settlement(running[0], 10))
    assert (await balance_of(process, tenant)).held == 5


async def test_the_age_is_the_time_since_it_became_unsettled(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    young, old = (
        await _unsettled(process, tenant, age_s=_HOUR_S - 100),
        await _unsettled(process, tenant, age_s=_HOUR_S + 100),
    )
    await run(
        process.database,
        "UPDATE reservations SET held_at = held_at - interval '90 days' WHERE organization_id = %s",
        tenant.organization_id,
    )
    assert await _resolve(process, tenant, _RELEASE) == Resolved(1, 10)
    assert (await _entry(process, young)).status is ReservationStatus.UNSETTLED
    assert (await _entry(process, old)).status is ReservationStatus.RELEASED


async def test_organizations_and_models_are_told_apart(process: Process) -> None:
    mine, other = [await make_tenant(process.database, credit=100) for _ in range(2)]
    kept = await _unsettled(process, other)
    small, large = [await _unsettled(process, mine) for _ in range(2)]
    await run(process.database, "UPDATE reservations SET model = 'large' WHERE id = %s", large.id)
    bulk = BulkResolution(process.database, LIMITS)
    found = await bulk.ledger_backlog(
        older_than_s=_HOUR_S, organization_id=mine.organization_id, models=("large", "absent")
    )
    assert found.reservations == 1
    assert await bulk.ledger_resolve_all(found.selection, _RELEASE) == Resolved(1, 10)
    assert (await _entry(process, large)).status is ReservationStatus.RELEASED
    for hold in (kept, small):
        assert (await _entry(process, hold)).status is ReservationStatus.UNSETTLED
    none = await bulk.ledger_backlog(
        older_than_s=0, organization_id=mine.organization_id, models=()
    )
    assert none.reservations == 0


async def test_the_backlog_names_reasons(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    for amount, reason in ((1, "silence"), (2, "a reset"), (4, "silence")):
        await _unsettled(process, tenant, amount, reason=reason)
    found = await _backlog(process, tenant)
    assert [(one.reason, one.reservations, one.hold_picousd) for one in found.reasons] == [
        ("silence", 2, 5),
        ("a reset", 1, 2),
    ]
    assert all(2 * _HOUR_S <= one.oldest_age_s < 3 * _HOUR_S for one in found.reasons)


class _Interrupted(Exception):
    pass


async def test_an_interrupted_run_is_repeated(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    for _ in range(7):
        await _unsettled(process, tenant)
    found = await _backlog(process, tenant)
    bulk = BulkResolution(process.database, LIMITS, batch_size=2)

    def interrupt(done: int) -> NoReturn:
        assert done == 2
        raise _Interrupted

    with pytest.raises(_Interrupted):
        await bulk.ledger_resolve_all(found.selection, _RELEASE, on_progress=interrupt)
    assert await balance_of(process, tenant) == Balance(50, 0, 50, 0, 0)
    heard: list[int] = []
    again = await bulk.ledger_resolve_all(found.selection, _SETTLE, on_progress=heard.append)
    assert (again, heard) == (Resolved(5, 50), [2, 4, 5])
    assert await balance_of(process, tenant) == Balance(50, 0, 0, 50, 0)


async def test_what_is_given_back_does_not_wait_for_the_next_call(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    for _ in range(5):
        await _unsettled(process, tenant)
    await _resolve(process, tenant, _RELEASE)
    [[waiting]] = await rows(
        process.database,
        "SELECT count(*) FROM unfolded WHERE organization_id = %s",
        tenant.organization_id,
    )
    assert waiting == 0


async def _race(process: Process, other: Process, many: int) -> None:
    """Runs two bulk resolutions with different actions and some late settlements at once, all on the same
    reservations. Checks that each reservation is resolved once."""
    tenant = await make_tenant(process.database, credit=10 * many)
    holds = [hold_of(tenant, 10) for _ in range(many)]
    await asyncio.gather(*(process.ledger.hold(hold) for hold in holds))
    await asyncio.gather(*(process.ledger.mark_unsettled(hold, "test") for hold in holds))
    found = await _backlog(process, tenant, older_than_s=0)
    released, settled, *late = await asyncio.gather(
        BulkResolution(process.database, LIMITS, 5).ledger_resolve_all(found.selection, _RELEASE),
        BulkResolution(other.database, LIMITS, 5).ledger_resolve_all(found.selection, _SETTLE),
        *(process.ledger.resolve(settlement(hold, 4)) for hold in holds[::3]),
    )
    assert isinstance(released, Resolved)
    assert isinstance(settled, Resolved)
    assert released.reservations + settled.reservations + late.count(True) == many
    spent = 10 * settled.reservations + 4 * late.count(True)
    assert await balance_of(process, tenant) == Balance(10 * many - spent, 0, 0, spent, 0)


async def test_runs_and_late_settlements_at_once(
    process: Process, other_process: Process, proof: Proof
) -> None:
    rounds = proof.size(3, 50)
    for _ in range(rounds):
        await _race(process, other_process, 30)
    proof.count("races of bulk resolutions with settlements", rounds * 30)


@pytest.mark.parametrize("action", BulkAction)
async def test_the_rule_of_the_settings(process: Process, action: BulkAction) -> None:
    tenant = await make_tenant(process.database, credit=100)
    young, old = [await _unsettled(process, tenant, age_s=hours * _HOUR_S) for hours in (23, 25)]
    running = await held(process, tenant, 10)
    rule = UnsettledRule(24, action)
    found = await BulkResolution(process.database, LIMITS).apply_rule(rule)
    assert found.reservations >= 1, "other tests may have left some"
    entry = await _entry(process, old)
    assert entry.resolved_by == f"rule ledger.unsettled_resolution={action} after 24 hours"
    assert entry.cost_picousd == (10 if action is _SETTLE else 0)
    assert (await _entry(process, young)).status is ReservationStatus.UNSETTLED
    assert (await _entry(process, running)).status is ReservationStatus.HELD
    assert await BulkResolution(process.database, LIMITS).apply_rule(rule) == Resolved(0, 0)
