"""Tests that monthly and total caps can be set, lowered and cleared, and that they limit spending."""

from uuid import uuid4

import pytest

from tests.support.books import USD, Books, open_books
from tests.support.gateway import Gateway
from tollkeeper.domain.access import OrganizationId, ProjectId
from tollkeeper.domain.admission import Refusal
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.domain.errors import InvalidRequest, NotFound
from tollkeeper.domain.views import CapUse

MONTH, TOTAL = CapPeriod.MONTH, CapPeriod.TOTAL


async def _cap(
    books: Books, amount: int, period: CapPeriod, project: ProjectId | None = None
) -> CapUse:
    return await books.services.caps.cap_set(books.organization, amount, period, project)


async def _uses(books: Books) -> list[tuple[ProjectId | None, int, int, int]]:
    found = await books.services.caps.cap_show(books.organization)
    return [
        (use.project_id, use.held_picousd, use.spent_picousd, use.remaining_picousd)
        for use in found
    ]


async def _excess(books: Books) -> int:
    rows = await books.sql(
        "SELECT cap_excess FROM accounts WHERE organization_id = %s", books.organization
    )
    return int(rows[0][0])


async def _move_to_an_earlier_month(books: Books) -> None:
    """Dates all calls so far one year back (a month is stored as year * 100 + month)."""
    for statement in (
        "UPDATE accounts SET month = month - 100 WHERE organization_id = %s",
        "UPDATE project_accounts SET month = month - 100 WHERE organization_id = %s",
        "UPDATE reservations SET month = month - 100 WHERE organization_id = %s",
        "UPDATE unfolded SET month = month - 100 WHERE organization_id = %s",
    ):
        await books.sql(statement, books.organization)


@pytest.mark.parametrize("period", [MONTH, TOTAL])
async def test_held_and_spent_never_exceed_the_cap(books: Books, period: CapPeriod) -> None:
    await _cap(books, 10 * USD, period)
    await books.spend(6 * USD, 2 * USD)
    await books.hold(3 * USD)
    await books.leave_unsettled(await books.hold(4 * USD))
    assert await _uses(books) == [(None, 7 * USD, 2 * USD, 1 * USD)]
    assert (await books.try_hold(USD + 1)).refusal is Refusal.ORGANIZATION_CAP
    await books.hold(USD)
    assert await _uses(books) == [(None, 8 * USD, 2 * USD, 0)]
    await books.assert_right()


async def test_each_project_has_its_own_cap(books: Books) -> None:
    other = await books.second_project()
    await _cap(books, 5 * USD, TOTAL, other.project)
    await _cap(books, 50 * USD, MONTH)
    await books.hold(40 * USD)
    assert (await other.try_hold(6 * USD)).refusal is Refusal.PROJECT_CAP
    await other.spend(5 * USD, 1 * USD)
    assert await _uses(books) == [
        (None, 40 * USD, 1 * USD, 9 * USD),
        (other.project, 0, 1 * USD, 4 * USD),
    ]
    await books.assert_right()


@pytest.mark.parametrize("period", [MONTH, TOTAL])
async def test_a_cap_below_what_was_spent_stops_the_next_call_only(
    books: Books, period: CapPeriod
) -> None:
    await books.spend(8 * USD, 8 * USD)
    running = await books.hold(4 * USD)
    use = await _cap(books, 5 * USD, period)
    assert use.remaining_picousd == -7 * USD
    assert await _excess(books) == 7 * USD
    await books.assert_right()
    assert (await books.try_hold(0)).refusal is Refusal.ORGANIZATION_CAP
    await books.settle(running, 3 * USD)
    assert await _uses(books) == [(None, 0, 11 * USD, -6 * USD)]
    await books.assert_right()
    # The amounts no longer exceed the cap, so no excess is stored.
    await _cap(books, 20 * USD, period)
    assert await _excess(books) == 0
    await books.hold(9 * USD)
    await books.assert_right()


async def test_what_waits_to_be_folded_is_counted_when_a_cap_is_set(books: Books) -> None:
    await books.spend(50 * USD, 2 * USD)
    assert await books.waiting() == 1
    assert (await _cap(books, 10 * USD, TOTAL)).remaining_picousd == 8 * USD
    assert await _excess(books) == 0


async def test_a_new_month_begins_at_zero(books: Books) -> None:
    await _cap(books, 10 * USD, MONTH)
    await _cap(books, 10 * USD, MONTH, books.project)
    await books.spend(9 * USD, 9 * USD)
    still_running = await books.hold(USD)
    assert (await books.try_hold(1)).refusal is Refusal.ORGANIZATION_CAP
    await _move_to_an_earlier_month(books)
    # The counters are shown as zero before the first call of the new month.
    fresh = (0, 0, 10 * USD)
    assert await _uses(books) == [(None, *fresh), (books.project, *fresh)]
    await books.assert_right()
    await books.hold(10 * USD)
    # The cost of a call counts in the month of its hold.
    await books.settle(still_running, USD)
    used = (10 * USD, 0, 0)
    assert await _uses(books) == [(None, *used), (books.project, *used)]
    await books.assert_right()
    # A total cap counts both months.
    assert (await _cap(books, 30 * USD, TOTAL)).remaining_picousd == 10 * USD


async def test_a_cap_set_in_a_new_month_sees_the_new_month(books: Books) -> None:
    await books.spend(9 * USD, 9 * USD)
    await _move_to_an_earlier_month(books)
    assert (await _cap(books, 5 * USD, MONTH)).remaining_picousd == 5 * USD
    assert await _excess(books) == 0
    await books.hold(5 * USD)
    assert (await books.try_hold(1)).refusal is Refusal.ORGANIZATION_CAP
    await books.assert_right()


async def test_a_cleared_cap_is_gone_and_may_be_cleared_again(books: Books) -> None:
    await _cap(books, 1 * USD, TOTAL)
    await _cap(books, 1 * USD, TOTAL, books.project)
    assert (await books.try_hold(2 * USD)).refusal is Refusal.ORGANIZATION_CAP
    await books.services.caps.cap_clear(books.organization)
    assert (await books.try_hold(2 * USD)).refusal is Refusal.PROJECT_CAP
    for _ in range(2):
        await books.services.caps.cap_clear(books.organization, books.project)
    await books.hold(2 * USD)
    assert await _uses(books) == []
    await books.assert_right()


async def test_a_cap_of_zero_stops_everything_that_costs(books: Books) -> None:
    await _cap(books, 0, MONTH)
    assert (await books.try_hold(1)).refusal is Refusal.ORGANIZATION_CAP
    await books.hold(0)


async def test_unknown_and_foreign_things_are_not_found(books: Books, gateway: Gateway) -> None:
    stranger = await open_books(gateway, await gateway.make_tenant("Stranger"), 0)
    unknown = ProjectId(uuid4())
    for project in (unknown, stranger.project):
        with pytest.raises(NotFound):
            await _cap(books, USD, TOTAL, project)
        with pytest.raises(NotFound):
            await books.services.caps.cap_clear(books.organization, project)
    nobody = OrganizationId(uuid4())
    with pytest.raises(NotFound):
        await books.services.caps.cap_set(nobody, USD, TOTAL)
    with pytest.raises(NotFound):
        await books.services.caps.cap_show(nobody)
    assert await _uses(stranger) == []


async def test_a_negative_cap_is_refused(books: Books) -> None:
    with pytest.raises(InvalidRequest):
        await _cap(books, -1, TOTAL)
