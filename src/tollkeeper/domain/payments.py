"""Kinds of grants, and what a payment provider reports about a payment."""

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
    # None: an operator made it.
    payment_id: str | None
    granted_at: int


class WithdrawalKind(StrEnum):
    REFUND = "refund"
    DISPUTE = "dispute"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A refund or a dispute as one event reports it. Stages only go forward, so the report with the
    highest stage is the current one, in whatever order reports arrive."""

    id: str
    kind: WithdrawalKind
    amount_picousd: int
    stage: int
    # Whether the money is taken back in this stage.
    withdrawn: bool


@dataclass(frozen=True, slots=True)
class PaymentReport:
    """What one event says about one payment."""

    payment_id: str
    # As it is written in the metadata; None: the event names no organization.
    organization: str | None = None
    # None: the event does not say that the payment succeeded.
    paid_picousd: int | None = None
    # The whole amount that was refunded so far; 0: the event does not say.
    refunded_picousd: int = 0
    withdrawal: Withdrawal | None = None


@dataclass(frozen=True, slots=True)
class PaymentEvent:
    id: str
    type: str
    livemode: bool
    # None: the event says nothing about a payment that could be booked.
    report: PaymentReport | None
    # Why there is no report.
    reason: str = ""
    # There should have been a report, so an operator has to look.
    refused: bool = False


class EventOutcome(StrEnum):
    """What became of an event."""

    # The grants of its payment are what all events about the payment say.
    BOOKED = "booked"
    # No event has said yet that the payment succeeded.
    WAITING = "waiting"
    # The payment succeeded, and no event names an organization.
    UNASSIGNED = "unassigned"
    UNKNOWN_ORGANIZATION = "unknown_organization"
    # It cannot be booked as it is: another currency, or it contradicts an earlier event.
    REFUSED = "refused"
    # Events of this type say nothing about credit.
    IGNORED = "ignored"


# An operator has to do something about these.
OPEN_OUTCOMES = (EventOutcome.UNKNOWN_ORGANIZATION, EventOutcome.REFUSED)


@dataclass(frozen=True, slots=True)
class Payment:
    """The sum of all events about a payment."""

    id: str
    organization_id: OrganizationId | None
    livemode: bool
    # None: it has not succeeded yet.
    paid_picousd: int | None
    # What refunds and disputes have taken back: at most what was paid.
    withdrawn_picousd: int


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event as operators see it. One that waited for another event is booked when that came."""

    outcome: EventOutcome
    id: str
    type: str
    livemode: bool
    payment_id: str | None
    organization_id: OrganizationId | None
    detail: str
    deliveries: int
    received_at: int
