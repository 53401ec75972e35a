"""Grants, and a payment provider's events. Booking a payment means creating its grants."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tollkeeper.core.access import OrganizationId

PICOUSD_PER_CENT = 10**10


class GrantKind(StrEnum):
    GRANT = "grant"
    WITHDRAWAL = "withdrawal"
    PAYMENT = "payment"
    TEST_PAYMENT = "test_payment"
    REFUND = "refund"
    TEST_REFUND = "test_refund"


# To add or to withdraw credit; the first is the default.
ADDING_KINDS = (GrantKind.GRANT, GrantKind.PAYMENT, GrantKind.TEST_PAYMENT)
WITHDRAWING_KINDS = (GrantKind.WITHDRAWAL, GrantKind.REFUND, GrantKind.TEST_REFUND)
REFUND_KINDS = (GrantKind.REFUND, GrantKind.TEST_REFUND)


@dataclass(frozen=True, slots=True)
class BookedGrant:
    id: UUID
    kind: GrantKind
    amount_picousd: int
    note: str
    # None: an operator's.
    payment_id: str | None
    granted_at: int


class WithdrawalKind(StrEnum):
    REFUND = "refund"
    DISPUTE = "dispute"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A refund or dispute as one event reports it. Stages only increase, so the highest is current even if
    events come out of order."""

    id: str
    kind: WithdrawalKind
    amount_picousd: int
    stage: int
    withdrawn: bool


@dataclass(frozen=True, slots=True)
class PaymentReport:
    payment_id: str
    # Text from the payment's metadata.
    organization: str | None = None
    # None if the event reports no successful payment.
    paid_picousd: int | None = None
    # In total; 0 if the event doesn't say.
    refunded_picousd: int = 0
    withdrawal: Withdrawal | None = None


@dataclass(frozen=True, slots=True)
class PaymentEvent:
    id: str
    type: str
    # False: the provider's test mode.
    livemode: bool
    # None if nothing can be booked.
    report: PaymentReport | None
    reason: str = ""
    # Events of this type describe a payment, but this one has no usable report. An operator has to look.
    refused: bool = False


class EventOutcome(StrEnum):
    # The grants agree with all events.
    BOOKED = "booked"
    # No event has said yet that the payment succeeded.
    WAITING = "waiting"
    # It succeeded, but no event names an organization.
    UNASSIGNED = "unassigned"
    UNKNOWN_ORGANIZATION = "unknown_organization"
    # Another currency, or it contradicts an earlier event.
    REFUSED = "refused"
    # Doesn't affect credit.
    IGNORED = "ignored"


# For an operator to look at: the first two can be assigned to an organization, a refused one has to be
# compared at the provider.
OPEN_OUTCOMES = (
    EventOutcome.UNKNOWN_ORGANIZATION,
    EventOutcome.UNASSIGNED,
    EventOutcome.REFUSED,
)


@dataclass(frozen=True, slots=True)
class Payment:
    """According to all events about it."""

    id: str
    organization_id: OrganizationId | None
    livemode: bool
    # None: not yet.
    paid_picousd: int | None
    # By refunds and disputes, at most what was paid.
    withdrawn_picousd: int


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """A waiting one becomes booked when the event arrives that it waits for."""

    outcome: EventOutcome
    id: str
    type: str
    livemode: bool
    payment_id: str | None
    organization_id: OrganizationId | None
    # None if no event has said that the payment succeeded.
    paid_picousd: int | None
    detail: str
    # By the provider.
    deliveries: int
    received_at: int


@dataclass(frozen=True, slots=True)
class GrantTotal:
    kind: GrantKind
    count: int
    amount_picousd: int
