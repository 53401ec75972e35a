"""Tests that each payment is granted exactly once, in whatever order and however often its events
arrive."""

import asyncio
import itertools
from collections.abc import Sequence
from uuid import uuid4

import pytest

from tests.support import stripe_events as stripe
from tests.support.books import USD, Books
from tests.support.databases import own_database
from tests.support.ledger import LIMITS, Process, count, make_tenant, rows, run, running_process
from tests.support.proof import Proof
from tests.support.tables import each
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.money.holds.rule import Refusal
from tollkeeper.money.payments.rule import EventOutcome, GrantKind
from tollkeeper.money.payments.service import Payments
from tollkeeper.money.payments.stripe_events import read_event


async def _receive(books: Books, *bodies: bytes) -> list[EventOutcome]:
    return [
        (await books.services.payments.payment_receive(read_event(body))).outcome for body in bodies
    ]


async def _grants(books: Books) -> list[tuple[str, int]]:
    """Returns the kind and the amount in cents of each grant, oldest first, without the initial grant."""
    found = await books.services.accounts.credit_list(books.organization)
    return [(grant.kind.value, grant.amount_picousd // (USD // 100)) for grant in found[-2::-1]]


async def _total(books: Books, payment: str) -> int:
    """Returns the sum of all grants of a payment, in cents."""
    rows = await books.sql(
        "SELECT coalesce(sum(amount), 0) FROM grants WHERE payment_id = %s", payment
    )
    return int(rows[0][0]) // (USD // 100)


async def test_a_payment_is_granted_once_for_its_session_and_its_intent(books: Books) -> None:
    payment = stripe.new_payment()
    session = stripe.completed(payment, 2500, books.organization)
    intent = stripe.succeeded(payment, 2500, books.organization)
    assert await _receive(books, session, intent, session, intent) == [EventOutcome.BOOKED] * 4
    assert await _grants(books) == [("payment", 2500)]
    assert (await books.balance())["available"] == 125 * USD
    await books.assert_right()


async def test_payments_of_the_test_mode_are_marked(books: Books) -> None:
    payment = stripe.new_payment()
    await _receive(
        books,
        stripe.succeeded(payment, 700, books.organization, livemode=False),
        stripe.refund(payment, "re_t", 200, livemode=False),
    )
    assert await _grants(books) == [("test_payment", 700), ("test_refund", -200)]
    # Live events do not change a payment of the test mode.
    assert await _receive(books, stripe.charge_refunded(payment, 700)) == [EventOutcome.REFUSED]
    assert await _total(books, payment) == 500
    await books.assert_right()


@each(
    ("story", "left"),
    [
        ((("pay", 1000), ("charge", 300), ("charge", 800)), 200),
        ((("pay", 1000), ("refund", "a", 300, "succeeded"), ("refund", "b", 500, "pending")), 200),
        (
            (("pay", 1000), ("refund", "a", 300, "succeeded"), ("charge", 300), ("charge", 1000)),
            0,
        ),
        # A refund fails after it had succeeded and was part of the charge's refunded total.
        (
            (
                ("pay", 1000),
                ("refund", "a", 300, "succeeded"),
                ("charge", 300),
                ("refund", "a", 300, "failed"),
            ),
            1000,
        ),
        ((("pay", 1000), ("dispute", "d", 1000, "needs_response")), 0),
        (
            (
                ("pay", 1000),
                ("dispute", "d", 1000, "needs_response"),
                ("dispute", "d", 1000, "won"),
            ),
            1000,
        ),
        (
            (
                ("pay", 1000),
                ("dispute", "d", 1000, "needs_response"),
                ("dispute", "d", 1000, "lost"),
            ),
            0,
        ),
        # An inquiry withdraws no credit.
        (
            (
                ("pay", 1000),
                ("dispute", "d", 1000, "warning_needs_response"),
                ("dispute", "d", 1000, "warning_closed"),
            ),
            1000,
        ),
        # A refund and a dispute together withdraw no more than was paid.
        ((("pay", 1000), ("charge", 400), ("dispute", "d", 1000, "lost")), 0),
    ],
)
async def test_every_order_of_events_ends_the_same(
    books: Books, proof: Proof, story: Sequence[tuple[object, ...]], left: int
) -> None:
    for order in [*itertools.permutations(story)][:: -proof.size(quick=12, long=1)]:
        payment = stripe.new_payment()
        bodies = [_body(books, payment, told) for told in order]
        # The first event arrives again after all others.
        await _receive(books, *bodies, bodies[0])
        assert await _total(books, payment) == left, order
    await books.assert_right()


def _body(books: Books, payment: str, told: tuple[object, ...]) -> bytes:
    match told:
        case ("pay", int(cents)):
            return stripe.succeeded(payment, cents, books.organization)
        case ("charge", int(cents)):
            return stripe.charge_refunded(payment, cents)
        case ("refund", str(name), int(cents), str(status)):
            return stripe.refund(payment, f"re_{name}{payment}", cents, status)
        case ("dispute", str(name), int(cents), str(status)):
            return stripe.dispute(payment, f"dp_{name}{payment}", cents, status)
    raise AssertionError(told)


async def test_a_refund_that_arrives_first_is_withdrawn_with_the_payment(books: Books) -> None:
    payment = stripe.new_payment()
    early = stripe.charge_refunded(payment, 400)
    assert await _receive(books, early) == [EventOutcome.WAITING]
    assert await _grants(books) == []
    await _receive(books, stripe.completed(payment, 1000, books.organization))
    assert sorted(await _grants(books)) == [("payment", 1000), ("refund", -400)]
    await books.assert_right()


async def test_a_refund_of_spent_credit_makes_the_balance_negative(books: Books) -> None:
    payment = stripe.new_payment()
    await _receive(books, stripe.succeeded(payment, 500, books.organization))
    running = await books.hold(5 * USD)
    await books.spend(100 * USD, 100 * USD)
    await _receive(books, stripe.charge_refunded(payment, 500))
    assert (await books.balance())["available"] == -5 * USD
    # No call is admitted, not even a free call. The call in flight is settled as usual.
    assert (await books.try_hold(0)).refusal is Refusal.CREDIT
    await books.settle(running, 4 * USD)
    assert (await books.balance())["available"] == -4 * USD
    with pytest.raises(StateConflict, match="-4 USD is available"):
        await books.grant(-1)
    await books.grant(5 * USD)
    await books.hold(1 * USD)
    await books.assert_right()


async def test_a_refund_below_the_overage_bound_stops_calls(books: Books) -> None:
    payment = stripe.new_payment()
    await _receive(books, stripe.succeeded(payment, 2000, books.organization))
    await books.spend(120 * USD, 120 * USD)
    await _receive(books, stripe.dispute(payment, f"dp_{payment}", 2000, "lost"))
    assert (await books.try_hold(0)).refusal is Refusal.OVERAGE
    await books.grant(20 * USD)
    assert (await books.try_hold(0)).refusal is Refusal.OVERAGE
    await books.services.accounts.overage_clear(books.organization)
    await books.hold(0)
    await books.assert_right()


async def test_an_event_without_organization_waits_for_one_that_names_it(books: Books) -> None:
    payment = stripe.new_payment()
    assert await _receive(books, stripe.succeeded(payment, 900)) == [EventOutcome.UNASSIGNED]
    assert await _receive(books, stripe.completed(payment, 900, books.organization)) == [
        EventOutcome.BOOKED
    ]
    assert await _grants(books) == [("payment", 900)]
    events = await books.services.payments.payment_event_list(limit=10)
    assert {found.outcome for found in events if found.payment_id == payment} == {
        EventOutcome.BOOKED
    }
    await books.assert_right()


async def test_an_operator_assigns_a_payment_once(books: Books) -> None:
    payment, payments = stripe.new_payment(), books.services.payments
    lost = stripe.succeeded(payment, 900, "no-such-organization")
    assert await _receive(books, lost) == [EventOutcome.UNKNOWN_ORGANIZATION]
    [found] = [
        one
        for one in await payments.payment_event_list(open_only=True)
        if one.payment_id == payment
    ]
    assert "no-such-organization" in found.detail
    with pytest.raises(NotFound):
        await payments.payment_assign("pi_none", books.organization)
    with pytest.raises(NotFound):
        await payments.payment_assign(payment, OrganizationId(uuid4()))
    for _ in range(2):
        await payments.payment_assign(payment, books.organization)
    assert await _receive(books, lost) == [EventOutcome.BOOKED]
    assert await _grants(books) == [("payment", 900)]
    other = await books.services.organizations.organization_create(f"Other {uuid4()}")
    with pytest.raises(StateConflict, match="belongs to the organization"):
        await payments.payment_assign(payment, other.id)
    await books.assert_right()


async def test_which_payments_an_operator_has_to_assign(conninfo: str) -> None:
    # The test has its own database, because other tests leave payments without an organization.
    async with running_process(own_database(conninfo, "unassigned"), pool_size=1) as process:
        payments = Payments(process.database, LIMITS)
        tenant = await make_tenant(process.database)

        async def receive(body: bytes) -> bool:
            await payments.payment_receive(read_event(body))
            return await payments.payment_check_unassigned()

        refused, unpaid = stripe.new_payment(), stripe.new_payment()
        assert not await receive(stripe.succeeded(refused, 100, currency="eur"))
        assert not await receive(stripe.completed(unpaid, 100, payment_status="unpaid"))
        assert not await receive(stripe.succeeded("pi_known", 100, tenant.organization_id))
        for named in ("nobody", None):
            payment = stripe.new_payment()
            assert await receive(stripe.succeeded(payment, 100, named))
            assert payment in [
                event.payment_id for event in await payments.payment_event_list(open_only=True)
            ]
            await payments.payment_assign(payment, tenant.organization_id)
            assert not await payments.payment_check_unassigned()
        payment = stripe.new_payment()
        assert await receive(stripe.succeeded(payment, 100))
        assert await receive(stripe.charge_refunded(payment, 99))
        assert not await receive(stripe.charge_refunded(payment, 100))


async def test_the_search_for_payments_to_assign_reads_no_other_payment(conninfo: str) -> None:
    async with running_process(own_database(conninfo, "many_payments"), pool_size=1) as process:
        payments = Payments(process.database, LIMITS)
        await run(
            process.database,
            """
            INSERT INTO payments (id, organization, livemode, paid)
            SELECT 'pi_' || n, gen_random_uuid(), true, 1 FROM generate_series(1, 5000) AS n
            """,
        )
        await run(process.database, "ANALYZE payments")
        before = await _read_so_far(process)
        assert not await payments.payment_check_unassigned()
        assert await _read_so_far(process) == before


async def _read_so_far(process: Process) -> int:
    """Returns the number of rows read so far from the payments, by scans and by indexes."""
    # The pool has one connection, so this flush includes the counts of its earlier statements.
    await rows(process.database, "SELECT pg_stat_force_next_flush()")
    await rows(process.database, "SELECT 1")
    return await count(
        process.database,
        """
        SELECT (seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables
        WHERE relname = 'payments'
        """,
    )


async def test_an_event_of_an_organization_that_comes_later_is_booked_then(books: Books) -> None:
    payment, events = stripe.new_payment(), books.services.payments
    made = await books.services.organizations.organization_create(f"Later {uuid4()}")
    body = stripe.succeeded(payment, 900, uuid4())
    renamed = body.replace(
        body.split(b'tollkeeper_organization": "')[1][:36], str(made.id).encode()
    )
    assert (await events.payment_receive(read_event(body))).outcome == "unknown_organization"
    assert (await events.payment_receive(read_event(renamed))).outcome == "booked"
    assert (await books.services.accounts.credit_show(made.id)).available_picousd == 9 * USD


async def test_events_that_contradict_an_earlier_one_are_refused(books: Books) -> None:
    payment = stripe.new_payment()
    other = await books.services.organizations.organization_create(f"Hostile {uuid4()}")
    await _receive(books, stripe.succeeded(payment, 900, books.organization))
    assert await _receive(
        books,
        stripe.completed(payment, 900, other.id),
        stripe.completed(payment, 901, books.organization),
    ) == [EventOutcome.REFUSED, EventOutcome.REFUSED]
    assert await _grants(books) == [("payment", 900)]
    assert (await books.services.accounts.credit_show(other.id)).granted_picousd == 0
    await books.assert_right()


@each(
    ("body", "outcome"),
    [
        (stripe.event("customer.created", {"id": "cus_1"}), EventOutcome.IGNORED),
        (stripe.succeeded("pi_eur", 100, currency="eur"), EventOutcome.REFUSED),
        (stripe.succeeded("pi_zero", 0), EventOutcome.IGNORED),
        (stripe.succeeded("pi_negative", -5), EventOutcome.REFUSED),
        (stripe.succeeded("pi_fraction", 5, amount_received=5.5), EventOutcome.REFUSED),
        (stripe.completed("pi_sub", 100, payment_intent=None), EventOutcome.IGNORED),
        (stripe.completed("pi_unpaid", 100, payment_status="unpaid"), EventOutcome.WAITING),
        (stripe.refund("pi_r", "re_r", 100, "something_new"), EventOutcome.REFUSED),
    ],
)
async def test_events_that_cannot_be_booked_are_recorded(
    books: Books, body: bytes, outcome: EventOutcome
) -> None:
    event = read_event(body)
    assert await _receive(books, body, body) == [outcome] * 2
    [found] = [
        one
        for one in await books.services.payments.payment_event_list(limit=1000)
        if one.id == event.id
    ]
    assert (found.outcome, found.deliveries, bool(found.detail)) == (outcome, 2, True)
    assert await _grants(books) == []


@each(
    "body",
    [
        b"",
        b"{}",
        b"\xff",
        b"[]",
        b'{"id": "evt_1", "type": "x", "livemode": 1, "data": {"object": {}}}',
        b'{"id": "evt\\u0000", "type": "x", "livemode": true, "data": {"object": {}}}',
    ],
)
def test_a_body_of_another_format_is_invalid(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_event(body)


async def test_concurrent_events_grant_once(books: Books) -> None:
    payment = stripe.new_payment()
    bodies = [
        stripe.completed(payment, 1000, books.organization),
        stripe.succeeded(payment, 1000, books.organization),
        stripe.charge_refunded(payment, 300),
        stripe.refund(payment, f"re_{payment}", 300),
    ]
    await asyncio.gather(*(_receive(books, body) for body in bodies * 4))
    assert sum(amount for _, amount in await _grants(books)) == 700
    await books.assert_right()


async def test_verify_finds_a_grant_that_no_event_explains(books: Books) -> None:
    payment = stripe.new_payment()
    await _receive(books, stripe.succeeded(payment, 1000, books.organization))
    await books.sql("UPDATE payments SET paid = paid + 1 WHERE id = %s", payment)
    found = await books.services.reconciliation.ledger_verify()
    assert [(one.invariant, one.subject) for one in found] == [
        ("payments are granted as their events say", payment)
    ]
    await books.sql("UPDATE payments SET paid = paid - 1, livemode = false WHERE id = %s", payment)
    [difference] = await books.services.reconciliation.ledger_verify()
    assert difference.subject == payment
    await books.sql("UPDATE payments SET livemode = true WHERE id = %s", payment)
    await books.assert_right()


async def test_an_operator_chooses_the_kind_of_a_change(books: Books) -> None:
    accounts = books.services.accounts
    await accounts.credit_grant(books.organization, 3 * USD, "wire 17", GrantKind.PAYMENT)
    await accounts.credit_grant(books.organization, -1 * USD, "wire 18", GrantKind.REFUND)
    await accounts.credit_grant(books.organization, -1 * USD)
    assert await _grants(books) == [("payment", 300), ("refund", -100), ("withdrawal", -100)]
    for amount, kind in ((1, GrantKind.REFUND), (-1, GrantKind.PAYMENT), (1, GrantKind.WITHDRAWAL)):
        with pytest.raises(InvalidRequest, match="is of the kind"):
            await accounts.credit_grant(books.organization, amount, kind=kind)
    page = await books.services.audit.audit_list(organization_id=books.organization, limit=3)
    assert [(entry.change.after or {})["kind"] for entry in page.entries] == [
        "withdrawal",
        "refund",
        "payment",
    ]
    await books.assert_right()
