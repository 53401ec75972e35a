"""Tests that credit is granted, withdrawn and shown correctly, also while calls are in flight."""

import asyncio
from uuid import uuid4

import pytest

from tests.support.books import USD, Books
from tests.support.tables import each
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.core.money import PICOUSD_MAX
from tollkeeper.money.holds.rule import Refusal


async def test_a_grant_adds_credit_and_keeps_its_note(books: Books) -> None:
    grant = await books.services.accounts.credit_grant(books.organization, 5 * USD, "for the demo")
    assert grant.balance.granted_picousd == grant.balance.available_picousd == 105 * USD
    rows = await books.sql(
        "SELECT amount, note FROM grants WHERE organization_id = %s AND id = %s",
        books.organization,
        grant.id,
    )
    assert rows == [(5 * USD, "for the demo")]
    await books.assert_right()


async def test_a_negative_grant_withdraws_what_is_available(books: Books) -> None:
    await books.hold(30 * USD)
    await books.grant(-70 * USD)
    assert await books.balance() == {
        "granted": 30 * USD,
        "available": 0,
        "held": 30 * USD,
        "settled": 0,
        "unsettled": 0,
    }
    await books.assert_right()


async def test_nothing_is_withdrawn_that_is_not_available(books: Books) -> None:
    await books.leave_unsettled(await books.hold(20 * USD))
    await books.hold(30 * USD)
    before = await books.balance()
    with pytest.raises(StateConflict, match="51 USD cannot be withdrawn: 50 USD is available"):
        await books.grant(-51 * USD)
    assert await books.balance() == before
    await books.assert_right()


async def test_what_waits_to_be_folded_can_be_withdrawn(books: Books) -> None:
    await books.spend(90 * USD, 15 * USD)
    assert await books.waiting() == 1
    await books.grant(-85 * USD)
    assert await books.waiting() == 0
    assert (await books.balance())["available"] == 0
    await books.assert_right()


async def test_a_balance_below_zero_gives_nothing_and_is_healed_by_a_grant(books: Books) -> None:
    await books.spend(100 * USD, 103 * USD)
    assert (await books.balance())["available"] == -3 * USD
    with pytest.raises(StateConflict, match="-3 USD is available"):
        await books.grant(-1)
    assert (await books.try_hold(0)).refusal is Refusal.CREDIT
    await books.grant(4 * USD)
    await books.hold(1 * USD)
    assert (await books.balance())["available"] == 0
    await books.assert_right()


async def test_only_one_of_many_withdrawals_gets_the_money(books: Books) -> None:
    outcomes = await asyncio.gather(
        *(books.grant(-60 * USD) for _ in range(6)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [StateConflict] * 5
    assert (await books.balance())["available"] == 40 * USD
    await books.assert_right()


async def test_grants_and_holds_at_the_same_time_lose_nothing(books: Books) -> None:
    await asyncio.gather(
        *(books.spend(2 * USD, USD) for _ in range(20)), *(books.grant(USD) for _ in range(10))
    )
    found = await books.balance()
    assert found == {
        "granted": 110 * USD,
        "available": 90 * USD,
        "held": 0,
        "settled": 20 * USD,
        "unsettled": 0,
    }
    await books.assert_right()


async def test_every_state_is_shown_whether_it_is_folded_or_not(books: Books) -> None:
    await books.hold(1 * USD)
    await books.spend(10 * USD, 2 * USD)
    await books.spend(3 * USD, 5 * USD)
    await books.release(await books.hold(7 * USD))
    await books.leave_unsettled(await books.hold(11 * USD))
    known_later = await books.hold(13 * USD)
    await books.leave_unsettled(known_later)
    await books.settle(known_later, 4 * USD)
    waiting = await books.balance()
    assert await books.waiting() > 0
    assert waiting == {
        "granted": 100 * USD,
        "available": 77 * USD,
        "held": 1 * USD,
        "settled": 11 * USD,
        "unsettled": 11 * USD,
    }
    await books.assert_right()
    # The next hold folds all resolutions into the account. The balance stays the same.
    await books.release(await books.hold(0))
    assert await books.waiting() == 1
    assert await books.balance() == waiting
    await books.assert_right()


async def test_a_trillion_dollars_fit(books: Books) -> None:
    await books.grant(10**12 * USD)
    assert (await books.balance())["available"] == (10**12 + 100) * USD
    await books.assert_right()


@each(("amount", "note"), [(0, ""), (PICOUSD_MAX, ""), (USD, "n" * 1001), (USD, "a\x00b")])
async def test_nonsense_is_refused(books: Books, amount: int, note: str) -> None:
    with pytest.raises(InvalidRequest):
        await books.services.accounts.credit_grant(books.organization, amount, note)
    assert (await books.balance())["granted"] == 100 * USD


async def test_unknown_organizations_are_not_found(books: Books) -> None:
    unknown = OrganizationId(uuid4())
    with pytest.raises(NotFound):
        await books.services.accounts.credit_show(unknown)
    with pytest.raises(NotFound):
        await books.services.accounts.credit_grant(unknown, USD)
