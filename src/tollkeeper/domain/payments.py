"""Defines the kinds of grants, and the reports of a payment provider about a payment."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tollkeeper.domain.access import OrganizationId

PICOUSD_PER_CENT = 10**10


class GrantKind(StrEnum):
    GRANT = "grant"
    WITHDRAWAL = "withdrawal"
    PAYMENT = "payment"
    TEST_PAYMENT = "test_payment"
    REFUND = "refund"
    TEST_REFUND = "test_refund"


# The kinds that an operator may choose. The first of each row is the default.
ADDING_KINDS = (GrantKind.GRANT, GrantKind.PAYMENT, GrantKind.TEST_PAYMENT)
WITHDRAWING_KINDS = (GrantKind.WITHDRAWAL, GrantKind.REFUND, GrantKind.TEST_REFUND)
REFUND_KINDS = (GrantKind.REFUND, GrantKind.TEST_REFUND)


@dataclass(frozen=True, slots=True)
class BookedGrant:
    id: UUID
    kind: GrantKind
    amount_picousd: int
    note: str
    # None if an operator made it.
    payment_id: str | None
    granted_at: int


class WithdrawalKind(StrEnum):
    REFUND = "refund"
    DISPUTE = "dispute"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Describes a refund or a dispute as one event reports it. Stages only advance, so the report
    with the highest stage is the current one, whatever the order of reports."""

    id: str
    kind: WithdrawalKind
    amount_picousd: int
    stage: int
    # Whether the money is withdrawn in this stage.
    withdrawn: bool


@dataclass(frozen=True, slots=True)
class PaymentReport:
    """Contains one event's statement about one payment."""

    payment_id: str
    # As written in the metadata; None if the event names no organization.
    organization: str | None = None
    # None if the event does not report a successful payment.
    paid_picousd: int | None = None
    # The total refunded so far; 0 if the event does not say.
    refunded_picousd: int = 0
    withdrawal: Withdrawal | None = None


@dataclass(frozen=True, slots=True)
class PaymentEvent:
    id: str
    type: str
    livemode: bool
    # None if the event does not describe a payment that could be booked.
    report: PaymentReport | None
    # The reason for a missing report.
    reason: str = ""
    # Whether a report was expected, so that an operator has to look.
    refused: bool = False


class EventOutcome(StrEnum):
    """Tells how an event was processed."""

    # The grants of its payment agree with all events about it.
    BOOKED = "booked"
    # No event has reported the payment's success yet.
    WAITING = "waiting"
    # The payment succeeded, but no event names an organization.
    UNASSIGNED = "unassigned"
    UNKNOWN_ORGANIZATION = "unknown_organization"
    # It cannot be booked: it has another currency, or contradicts an earlier event.
    REFUSED = "refused"
    # Events of this type do not affect credit.
    IGNORED = "ignored"


# These require an operator's action.
OPEN_OUTCOMES = (EventOutcome.UNKNOWN_ORGANIZATION, EventOutcome.REFUSED)


@dataclass(frozen=True, slots=True)
class Payment:
    """Contains the sum of all events about a payment."""

    id: str
    organization_id: OrganizationId | None
    livemode: bool
    # None if it has not succeeded yet.
    paid_picousd: int | None
    # The amount withdrawn by refunds and disputes, at most the paid amount.
    withdrawn_picousd: int


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """Shows an event to operators. An event that waited for another one is booked when that
    arrived."""

    outcome: EventOutcome
    id: str
    type: str
    livemode: bool
    payment_id: str | None
    organization_id: OrganizationId | None
    detail: str
    deliveries: int
    received_at: int
