"""Tests that an organization below its overage bound is stopped in every process, until an operator
clears the stop."""

import asyncio
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from tests.support.books import USD, Books
from tests.support.ledger import (
    LIMITS,
    Process,
    held,
    hold_of,
    make_process,
    make_tenant,
    settlement,
)
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.core.money import PICOUSD_MAX
from tollkeeper.money.credit.service import Accounts
from tollkeeper.money.holds.rule import ADMITTED, DefaultLimits, Refusal
from tollkeeper.money.unsettled.bulk_resolution import BulkAction, BulkResolution

# The default overage bound of the settings.
BOUND = 10 * USD
STOPPED = "an organization's calls are stopped: its balance is below the bound"


async def test_below_the_bound_new_credit_does_not_admit(books: Books) -> None:
    """After 100 USD were granted and more than 110 USD spent, a grant of 50 USD would suffice for the
    next call. The call is refused nevertheless."""
    await books.spend(100 * USD, 100 * USD + BOUND + 1)
    with capture_logs() as logs:
        assert (await books.try_hold(0)).refusal is Refusal.OVERAGE
        await books.grant(50 * USD)
        refused = await books.try_hold(USD)
    assert refused.refusal is Refusal.OVERAGE
    assert (refused.limit, refused.available_picousd) == (BOUND, 40 * USD - 1)
    assert [line["overage_usd"] for line in logs if line["event"] == STOPPED] == ["10.000000000001"]
    cleared = await books.services.accounts.overage_clear(books.organization)
    assert not cleared.stopped
    assert await books.try_hold(USD) == ADMITTED
    await books.assert_right()


async def test_within_the_bound_new_credit_admits(books: Books) -> None:
    await books.spend(100 * USD, 100 * USD + BOUND)
    assert (await books.try_hold(0)).refusal is Refusal.CREDIT
    await books.grant(BOUND + USD)
    assert await books.try_hold(USD) == ADMITTED


async def test_a_grant_that_comes_first_does_not_hide_the_debt(books: Books) -> None:
    """There was no call between the settlement and the grant."""
    await books.spend(100 * USD, 200 * USD)
    await books.grant(500 * USD)
    assert (await books.try_hold(USD)).refusal is Refusal.OVERAGE


async def test_running_calls_end_normally(books: Books) -> None:
    running = await books.hold(40 * USD)
    await books.spend(10 * USD, 111 * USD)
    assert (await books.try_hold(0)).refusal is Refusal.OVERAGE
    await books.settle(running, 2 * USD)
    assert (await books.services.accounts.overage_show(books.organization)).balance_picousd == (
        -13 * USD
    )
    await books.assert_right()


async def test_holds_are_no_debt(books: Books) -> None:
    """A call cost more than was available, but running calls hold more than the missing amount. So the
    organization has no debt."""
    running = await books.hold(90 * USD)
    await books.spend(10 * USD, 40 * USD)
    assert (await books.try_hold(0)).refusal is Refusal.CREDIT
    await books.release(running)
    assert await books.try_hold(USD) == ADMITTED


async def test_another_organization_is_not_stopped(books: Books) -> None:
    await books.spend(100 * USD, 200 * USD)
    assert (await books.try_hold(0)).refusal is Refusal.OVERAGE
    other = await make_tenant(books.services.database, credit=5)
    assert await books.services.ledger.hold(hold_of(other, 5)) == ADMITTED


async def test_every_process_stops_at_the_same_settlement(process: Process) -> None:
    """Many concurrent calls cause overage. The next call is refused, in whichever process it arrives."""
    limits = DefaultLimits(LIMITS.requests_per_minute, LIMITS.concurrency, 5)
    first, second = (make_process(process.database, limits) for _ in range(2))
    tenant = await make_tenant(process.database, credit=20)
    calls = [await held(one, tenant, 2) for one in (first, second) * 5]
    settled = (first.ledger.resolve(settlement(call, 3)) for call in calls)
    assert all(await asyncio.gather(*settled))
    await Accounts(process.database, limits).credit_grant(tenant.organization_id, 100)
    for one in (second, first):
        refused = await one.ledger.hold(hold_of(tenant, 1))
        assert refused.refusal is Refusal.OVERAGE


async def test_a_stop_by_a_bulk_resolution_is_logged(process: Process) -> None:
    """The bulk resolution adds a settlement with overage to the account before the next admission does."""
    limits = DefaultLimits(LIMITS.requests_per_minute, LIMITS.concurrency, 5)
    one = make_process(process.database, limits)
    tenant = await make_tenant(process.database, credit=20)
    bulk = BulkResolution(one.database, limits)
    costly, unsettled = [await held(one, tenant, 2) for _ in range(2)]
    await one.ledger.mark_unsettled(unsettled, "nobody knows")
    await one.ledger.resolve(settlement(costly, 30))
    backlog = await bulk.ledger_backlog(older_than_s=0, organization_id=tenant.organization_id)
    with capture_logs() as logs:
        await bulk.ledger_resolve_all(backlog.selection, BulkAction.SETTLE_HOLD)
        assert (await one.ledger.hold(hold_of(tenant, 0))).refusal is Refusal.OVERAGE
    stops = [line for line in logs if line["event"] == STOPPED]
    assert [line["organization_id"] for line in stops] == [str(tenant.organization_id)]


async def test_an_organization_may_have_its_own_bound(books: Books) -> None:
    accounts = books.services.accounts
    shown = await accounts.overage_show(books.organization)
    assert (shown.bound_picousd, shown.is_default, shown.stopped) == (BOUND, True, False)
    await accounts.overage_set(books.organization, 2 * USD)
    await books.spend(100 * USD, 103 * USD)
    assert (await books.try_hold(0)).refusal is Refusal.OVERAGE
    # A wider bound does not clear the stop.
    wider = await accounts.overage_set(books.organization, 3 * USD)
    assert (wider.bound_picousd, wider.is_default, wider.stopped) == (3 * USD, False, True)
    assert (wider.balance_picousd, wider.overage_picousd) == (-3 * USD, 3 * USD)
    await accounts.overage_clear(books.organization)
    page = await books.services.audit.audit_list(organization_id=books.organization)
    changes = [
        entry.change.operation for entry in page.entries if entry.change.object_kind == "overage"
    ]
    assert changes == ["overage_clear", "overage_set", "overage_set"]
    assert (await books.try_hold(0)).refusal is Refusal.CREDIT
    back = await accounts.overage_set(books.organization, None)
    assert (back.bound_picousd, back.is_default) == (BOUND, True)


async def test_what_is_still_below_the_bound_is_not_cleared(books: Books) -> None:
    await books.spend(100 * USD, 120 * USD)
    with pytest.raises(StateConflict, match="The balance is -20 USD, still below"):
        await books.services.accounts.overage_clear(books.organization)
    await books.grant(10 * USD)
    await books.services.accounts.overage_clear(books.organization)
    assert (await books.try_hold(0)).refusal is Refusal.CREDIT


async def test_who_was_never_stopped_can_be_cleared(books: Books) -> None:
    assert not (await books.services.accounts.overage_clear(books.organization)).stopped
    assert await books.try_hold(USD) == ADMITTED


@pytest.mark.parametrize("bound", [-1, PICOUSD_MAX + 1])
async def test_a_bound_is_an_amount(books: Books, bound: int) -> None:
    with pytest.raises(InvalidRequest):
        await books.services.accounts.overage_set(books.organization, bound)


async def test_an_unknown_organization_is_refused(books: Books) -> None:
    nobody = OrganizationId(uuid4())
    for work in (
        books.services.accounts.overage_show(nobody),
        books.services.accounts.overage_set(nobody, None),
        books.services.accounts.overage_clear(nobody),
    ):
        with pytest.raises(NotFound):
            await work
