"""Tests that operators resolve each unsettled call once, and that `ledger verify` finds violations of
every invariant."""

import asyncio
from typing import LiteralString
from uuid import UUID, uuid4

import pytest

from tests.support.activity_records import record_of, written
from tests.support.books import MODEL, USD, Books, open_books
from tests.support.gateway import Gateway
from tests.support.ledger import find_differences
from tollkeeper.core.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.core.views import ReservationEntry, ReservationStatus
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.unsettled.service import FarAboveHold
from tollkeeper.money.verification.store import INVARIANTS


async def _resolve(books: Books, identity: UUID, settle: int | None) -> ReservationEntry:
    return await books.services.reconciliation.ledger_resolve(identity, settle_picousd=settle)


async def test_settled_by_hand(books: Books) -> None:
    hold = await books.hold(10 * USD)
    await books.leave_unsettled(hold)
    entry = await _resolve(books, hold.id, 4 * USD)
    assert (entry.status, entry.cost_picousd) == (ReservationStatus.SETTLED, 4 * USD)
    assert entry.resolved_by == "operator"
    assert await books.balance() == {
        "granted": 100 * USD,
        "available": 96 * USD,
        "held": 0,
        "settled": 4 * USD,
        "unsettled": 0,
    }
    rows = await books.sql(
        "SELECT line_item, amount_picousd FROM cost_rollup WHERE organization_id = %s",
        books.organization,
    )
    assert rows == [(f"{MODEL}, other", 4 * USD)]
    await books.assert_right()


async def test_released_by_hand(books: Books) -> None:
    hold = await books.hold(10 * USD)
    await books.leave_unsettled(hold)
    entry = await _resolve(books, hold.id, None)
    assert (entry.status, entry.cost_picousd) == (ReservationStatus.RELEASED, 0)
    assert (await books.balance())["available"] == 100 * USD
    await books.assert_right()


async def test_more_than_the_hold_is_overage(books: Books) -> None:
    hold = await books.hold(100 * USD)
    await books.leave_unsettled(hold)
    assert (await _resolve(books, hold.id, 130 * USD)).cost_picousd == 130 * USD
    balance = await books.balance()
    assert (balance["available"], balance["settled"]) == (-30 * USD, 130 * USD)
    rows = await books.sql(
        "SELECT amount FROM overages WHERE organization_id = %s", books.organization
    )
    assert rows == [(30 * USD,)]
    await books.assert_right()


async def test_far_more_than_the_hold_needs_a_confirmation(books: Books) -> None:
    hold = await books.hold(10 * USD)
    await books.leave_unsettled(hold)
    with pytest.raises(FarAboveHold, match="more than twice its hold of 10 USD"):
        await _resolve(books, hold.id, 20 * USD + 1)
    assert (await books.balance())["unsettled"] == 10 * USD
    entry = await books.services.reconciliation.ledger_resolve(
        hold.id, settle_picousd=20 * USD + 1, confirmed=True
    )
    assert entry.cost_picousd == 20 * USD + 1
    twice = await books.hold(10 * USD)
    await books.leave_unsettled(twice)
    assert (await _resolve(books, twice.id, 20 * USD)).cost_picousd == 20 * USD
    await books.assert_right()


@pytest.mark.parametrize("first", [None, 0, 3 * USD])
@pytest.mark.parametrize("second", [None, 3 * USD])
async def test_nothing_is_resolved_twice(
    books: Books, first: int | None, second: int | None
) -> None:
    hold = await books.hold(10 * USD)
    await books.leave_unsettled(hold)
    await _resolve(books, hold.id, first)
    before = await books.balance()
    with pytest.raises(StateConflict, match="already, by operator"):
        await _resolve(books, hold.id, second)
    assert await books.balance() == before
    await books.assert_right()


async def test_of_many_at_once_one_resolves(books: Books) -> None:
    hold = await books.hold(10 * USD)
    await books.leave_unsettled(hold)
    outcomes = await asyncio.gather(
        *(_resolve(books, hold.id, USD) for _ in range(6)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert [type(outcome) for outcome in refused] == [StateConflict] * 5
    assert (await books.balance())["settled"] == USD
    await books.assert_right()


async def test_only_what_is_unsettled_is_resolved_by_hand(books: Books) -> None:
    running = await books.hold(USD)
    with pytest.raises(StateConflict, match="is held"):
        await _resolve(books, running.id, None)
    await books.settle(running, USD)
    with pytest.raises(StateConflict, match="settled already, by call"):
        await _resolve(books, running.id, None)
    with pytest.raises(NotFound):
        await _resolve(books, uuid4(), None)
    assert (await books.balance())["settled"] == USD


async def test_a_negative_settlement_is_refused(books: Books) -> None:
    hold = await books.hold(USD)
    await books.leave_unsettled(hold)
    with pytest.raises(InvalidRequest):
        await _resolve(books, hold.id, -1)


async def test_what_is_unsettled_is_listed_until_it_is_resolved(books: Books) -> None:
    hold = await books.hold(USD)
    await books.hold(USD)
    await books.leave_unsettled(hold, "silence")

    async def mine() -> list[ReservationEntry]:
        found = await books.services.reconciliation.ledger_unsettled()
        return [entry for entry in found if entry.organization_id == books.organization]

    (entry,) = await mine()
    assert (entry.id, entry.hold_picousd, entry.reason) == (hold.id, USD, "silence")
    assert (entry.status, entry.cost_picousd) == (ReservationStatus.UNSETTLED, None)
    await _resolve(books, hold.id, None)
    assert await mine() == []


# For each invariant, statements that violate it in one organization, whose id is %(id)s.
_BREAKS: dict[str, tuple[LiteralString, ...]] = {
    "payments are granted as their events say": (
        (
            "INSERT INTO payments (id, organization, livemode, paid)"
            " VALUES ('pi_lost', %(id)s, true, 1)"
        ),
        (
            "INSERT INTO grants (organization_id, id, amount, note, kind, payment_id)"
            " VALUES (%(id)s, gen_random_uuid(), 1, '', 'payment', 'pi_invented')"
        ),
    ),
    "balances are the sum of their rows": (
        (
            "UPDATE accounts SET available = available + 1, granted = granted + 1"
            " WHERE organization_id = %(id)s"
        ),
        (
            "UPDATE accounts SET available = available + 1, settled = settled - 1"
            " WHERE organization_id = %(id)s"
        ),
        (
            "UPDATE accounts SET held = held + 1, unsettled = unsettled - 1"
            " WHERE organization_id = %(id)s"
        ),
        "UPDATE accounts SET overage = overage + 1 WHERE organization_id = %(id)s",
        "UPDATE grants SET amount = amount + 1 WHERE organization_id = %(id)s",
        (
            "UPDATE unfolded SET settled = settled - 1 WHERE organization_id = %(id)s"
            " AND kind = 'resolved' AND settled > 0"
        ),
        "DELETE FROM unfolded WHERE organization_id = %(id)s",
    ),
    "project balances are the sum of their rows": (
        "UPDATE project_accounts SET held = held + 1 WHERE organization_id = %(id)s",
        "UPDATE project_accounts SET unsettled = unsettled + 1 WHERE organization_id = %(id)s",
        "UPDATE project_accounts SET settled = settled + 1 WHERE organization_id = %(id)s",
        "UPDATE project_accounts SET live_holds = live_holds + 1 WHERE organization_id = %(id)s",
    ),
    "the cost report is the sum of settled rows": (
        "UPDATE cost_rollup SET amount_picousd = amount_picousd + 1 WHERE organization_id = %(id)s",
        "UPDATE cost_rollup SET day = day - 1 WHERE organization_id = %(id)s",
        "UPDATE cost_rollup SET line_item = 'other' WHERE organization_id = %(id)s",
        "DELETE FROM cost_rollup WHERE organization_id = %(id)s",
    ),
    "every excess over a hold has its overage row": (
        "DELETE FROM overages WHERE organization_id = %(id)s",
        "UPDATE overages SET amount = amount + 1 WHERE organization_id = %(id)s",
    ),
    "no hold outlives its process": (
        (
            "UPDATE reservations SET held_at = held_at - interval '1 day', process_id = id"
            " WHERE organization_id = %(id)s"
        ),
    ),
    "key, project and reservation belong together": (
        "UPDATE reservations SET api_key_id = id WHERE organization_id = %(id)s",
    ),
    "every settled cost counts on its UTC day": (
        "UPDATE resolutions SET day = day + 1 WHERE organization_id = %(id)s",
    ),
    "every mark belongs to a reservation": (
        (
            "UPDATE unsettled_marks SET reservation_id = gen_random_uuid()"
            " WHERE organization_id = %(id)s"
        ),
    ),
    "every call that may have been charged has its reservation": (
        (
            "INSERT INTO activity (organization_id, request_id, started_at, project_id, api_key_id,"
            " operation, model, streamed, duration_ms, status, estimated, settlement)"
            " VALUES (%(id)s, gen_random_uuid(), now(), %(id)s, %(id)s, 'chat_create', 'm', false, 1,"
            " 200, false, 'settled')"
        ),
    ),
    "a cap's counters are the sum of its rows": (
        "UPDATE cap_counters SET held = held + 1 WHERE organization_id = %(id)s",
        "UPDATE cap_counters SET settled = settled + 1 WHERE organization_id = %(id)s",
        "DELETE FROM cap_counters WHERE organization_id = %(id)s",
    ),
    "held and settled stay within the caps": (
        "UPDATE caps SET amount = 1 WHERE organization_id = %(id)s AND period = 'month'",
        "UPDATE caps SET amount = 1 WHERE organization_id = %(id)s AND period = 'total'",
    ),
    "an organization with caps is marked": (
        "UPDATE accounts SET is_capped = false WHERE organization_id = %(id)s",
    ),
    "no column of money is a float": ("CREATE TABLE planted (amount double precision)",),
}
_PLANTED = [(name, statement) for name, breaks in _BREAKS.items() for statement in breaks]


@pytest.fixture(scope="module")
async def busy(gateway: Gateway) -> Books:
    """Returns a ledger with reservations in every state, folded and not folded."""
    books = await open_books(gateway, await gateway.make_tenant("Busy"))
    await books.services.caps.cap_set(books.organization, 90 * USD, CapPeriod.TOTAL)
    await books.services.caps.cap_set(
        books.organization, 90 * USD, CapPeriod.MONTH, key_id=books.key
    )
    await books.leave_unsettled(await books.hold(2 * USD))
    await books.spend(3 * USD, 4 * USD)
    await books.release(await books.hold(5 * USD))
    await books.hold(6 * USD)
    later = await books.hold(7 * USD)
    await books.leave_unsettled(later)
    await books.settle(later, 8 * USD)
    await books.spend(9 * USD, 1 * USD)
    await books.assert_right()
    return books


@pytest.mark.parametrize(("invariant", "statement"), _PLANTED)
async def test_each_invariant_finds_its_own_break(
    busy: Books, invariant: str, statement: LiteralString
) -> None:
    found = await _differences_with(busy, statement)
    assert invariant in {name for name, _, _ in found}, found


async def test_nothing_is_found_where_nothing_is_broken(busy: Books) -> None:
    assert await _differences_with(busy, "SELECT") == []


def test_every_invariant_has_a_planted_break() -> None:
    assert set(_BREAKS) == set(INVARIANTS)


async def test_a_released_call_whose_hold_is_lost_is_no_difference(books: Books) -> None:
    await written(books.services.activity, record_of(books, settlement="released"))
    await books.assert_right()


async def test_verify_names_what_is_wrong(books: Books) -> None:
    await books.sql(
        "UPDATE accounts SET available = available - 7, granted = granted - 7"
        " WHERE organization_id = %s",
        books.organization,
    )
    (found,) = await books.services.reconciliation.ledger_verify()
    assert found.invariant == "balances are the sum of their rows"
    assert found.subject == str(books.organization)
    assert str(100 * USD - 7) in found.detail
    await books.sql(
        "UPDATE accounts SET available = available + 7, granted = granted + 7"
        " WHERE organization_id = %s",
        books.organization,
    )
    await books.assert_right()


class _Undone(Exception):
    pass


async def _differences_with(books: Books, statement: LiteralString) -> list[tuple[str, str, str]]:
    """Runs the statement, returns the differences that a verification finds, and rolls the statement
    back."""
    found: list[tuple[str, str, str]] = []
    with pytest.raises(_Undone):
        async with books.services.database.transaction() as connection:
            await connection.execute(statement, {"id": books.organization})
            found = await find_differences(connection, age_s=300, lease_s=15)
            raise _Undone
    return found
