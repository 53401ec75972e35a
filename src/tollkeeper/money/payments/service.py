"""Books a payment provider's events as credit. Each is first added to its payment, then the missing
grants are booked, so they equal the paid and withdrawn amounts: events may come in any order and
repeatedly. A lock on the payment's row serialises them."""

from dataclasses import dataclass
from uuid import UUID

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import NotFound, StateConflict
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.database.database import Connection, Database
from tollkeeper.money.credit.locked_account import lock_and_fold_account, no_organization
from tollkeeper.money.credit.service import book_grant
from tollkeeper.money.holds.rule import DefaultLimits
from tollkeeper.money.payments import store as payments
from tollkeeper.money.payments.rule import (
    OPEN_OUTCOMES,
    EventOutcome,
    GrantKind,
    Payment,
    PaymentEvent,
    PaymentReport,
    RecordedEvent,
)
from tollkeeper.tenants import organizations_store as organizations

EVENTS_PAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class Booking:
    outcome: EventOutcome
    # Why it isn't booked, for an operator.
    detail: str = ""


class Payments:
    def __init__(self, database: Database, limits: DefaultLimits) -> None:
        self._database = database
        self._limits = limits

    async def payment_receive(self, event: PaymentEvent) -> Booking:
        """A repeated event doesn't change the credit again."""
        async with self._database.transaction() as connection:
            if event.report is None:
                outcome = EventOutcome.REFUSED if event.refused else EventOutcome.IGNORED
                booking = Booking(outcome, event.reason)
            else:
                booking = await self._add(connection, event.report, livemode=event.livemode)
            await payments.record_event(connection, event, booking.outcome, booking.detail)
        return booking

    async def payment_show(self, payment_id: str) -> Payment:
        async with self._database.autocommit() as connection:
            payment = await payments.find_due(connection, payment_id)
        if payment is None:
            raise _no_payment(payment_id)
        return payment

    async def payment_assign(self, payment_id: str, organization_id: OrganizationId) -> Payment:
        """For events that named none. StateConflict if it belongs to another one."""
        async with self._database.transaction() as connection:
            if await organizations.find(connection, organization_id) is None:
                raise no_organization(organization_id)
            await payments.assign(connection, payment_id, organization_id)
            # What the grants must equal.
            payment = await payments.find_due(connection, payment_id)
            if payment is None:
                raise _no_payment(payment_id)
            if payment.organization_id != organization_id:
                raise StateConflict(
                    f"The payment belongs to the organization {payment.organization_id}."
                )
            await self._book(connection, payment)
        return payment

    async def payment_event_list(
        self, *, open_only: bool = False, limit: int = 100
    ) -> list[RecordedEvent]:
        """Newest first. `open_only`: those that need an operator."""
        assert 1 <= limit <= EVENTS_PAGE_MAX
        async with self._database.autocommit() as connection:
            return await payments.find_events(
                connection, outcomes=OPEN_OUTCOMES if open_only else (), limit=limit
            )

    async def payment_check_unassigned(self) -> bool:
        """Succeeded, not refunded, and without an organization: an operator can assign it."""
        async with self._database.autocommit() as connection:
            return await payments.unassigned_exists(connection)

    async def _add(
        self, connection: Connection, report: PaymentReport, *, livemode: bool
    ) -> Booking:
        organization_id = await _find_organization(connection, report.organization)
        if not await payments.add_report(connection, report, organization_id, livemode=livemode):
            # One is live, the other test.
            payment_mode = "test" if livemode else "live"
            return Booking(EventOutcome.REFUSED, f"the payment was made in {payment_mode} mode")
        payment = await payments.find_due(connection, report.payment_id)
        assert payment is not None
        await self._book(connection, payment)
        return _booking(payment, report, organization_id)

    async def _book(self, connection: Connection, payment: Payment) -> None:
        """Nothing while it has no organization or hasn't succeeded. The caller has locked it."""
        organization_id, paid = payment.organization_id, payment.paid_picousd
        if organization_id is None or paid is None:
            return
        locked = await lock_and_fold_account(connection, self._limits, organization_id)
        booked_paid, booked_withdrawn = await payments.find_granted(
            connection, organization_id, payment.id
        )
        payment_kind, refund_kind = (
            (GrantKind.PAYMENT, GrantKind.REFUND)
            if payment.livemode
            else (GrantKind.TEST_PAYMENT, GrantKind.TEST_REFUND)
        )
        changes = (
            (payment_kind, paid - booked_paid),
            (refund_kind, booked_withdrawn - payment.withdrawn_picousd),
        )
        for kind, amount in changes:
            if amount:
                await book_grant(
                    connection,
                    organization_id,
                    locked.states[organization_id],
                    amount,
                    kind,
                    note=payment.id,
                    payment_id=payment.id,
                )


def _no_payment(payment_id: str) -> NotFound:
    return NotFound(f"There is no payment {payment_id[:80]}.", param="payment")


async def _find_organization(connection: Connection, text: str | None) -> OrganizationId | None:
    try:
        identity = OrganizationId(UUID(text or ""))
    except ValueError:
        return None
    found = await organizations.find(connection, identity)
    return None if found is None else identity


def _booking(
    payment: Payment, report: PaymentReport, organization_id: OrganizationId | None
) -> Booking:
    """`organization_id` is what the event names, None if it doesn't exist."""
    if organization_id not in (None, payment.organization_id):
        return Booking(
            EventOutcome.REFUSED, f"the payment belongs to organization {payment.organization_id}"
        )
    if report.paid_picousd not in (None, payment.paid_picousd):
        paid = usd_from_picousd(payment.paid_picousd or 0)
        return Booking(EventOutcome.REFUSED, f"an earlier event reported that {paid} USD was paid")
    if payment.organization_id is None and report.organization is not None:
        named = report.organization[:80]
        return Booking(EventOutcome.UNKNOWN_ORGANIZATION, f"there is no organization {named!a}")
    if payment.paid_picousd is None:
        return Booking(EventOutcome.WAITING, "no event has reported that the payment succeeded")
    if payment.organization_id is None:
        return Booking(EventOutcome.UNASSIGNED, "no event names an organization")
    return Booking(EventOutcome.BOOKED)
