"""Defines the kinds of grants, and the events by which a payment provider reports on payments.

A grant changes an organization's credit. To book a payment is to create its grants.
"""

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


# The kinds of grant that an operator may choose, to add or to withdraw credit. The first kind of
# each tuple is the default.
ADDING_KINDS = (GrantKind.GRANT, GrantKind.PAYMENT, GrantKind.TEST_PAYMENT)
WITHDRAWING_KINDS = (GrantKind.WITHDRAWAL, GrantKind.REFUND, GrantKind.TEST_REFUND)
REFUND_KINDS = (GrantKind.REFUND, GrantKind.TEST_REFUND)


@dataclass(frozen=True, slots=True)
class BookedGrant:
    id: UUID
    kind: GrantKind
    amount_picousd: int
    note: str
    # None if an operator created the grant.
    payment_id: str | None
    granted_at: int


class WithdrawalKind(StrEnum):
    REFUND = "refund"
    DISPUTE = "dispute"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Describes a refund or a dispute as one event reports it. The stage number of a refund or
    dispute only increases. So the event with the highest stage is the current one, even if events
    arrive out of order."""

    id: str
    kind: WithdrawalKind
    amount_picousd: int
    stage: int
    # Whether the money is withdrawn in this stage.
    withdrawn: bool


@dataclass(frozen=True, slots=True)
class PaymentReport:
    """Contains the data about one payment in one event."""

    payment_id: str
    # The organization's id as text from the payment's metadata; None if the event names no
    # organization.
    organization: str | None = None
    # None if the event does not report a successful payment.
    paid_picousd: int | None = None
    # The total refunded so far; 0 if the event does not contain it.
    refunded_picousd: int = 0
    withdrawal: Withdrawal | None = None


@dataclass(frozen=True, slots=True)
class PaymentEvent:
    id: str
    type: str
    # False for a payment in the provider's test mode.
    livemode: bool
    # None if the event does not describe a payment that can be booked.
    report: PaymentReport | None
    # The reason why `report` is None.
    reason: str = ""
    # True if events of this type describe a payment, but this event has no usable report. An operator
    # has to check the event.
    refused: bool = False


class EventOutcome(StrEnum):
    """Lists the possible results of processing an event."""

    # The grants for the payment agree with all events about the payment.
    BOOKED = "booked"
    # No event has reported yet that the payment succeeded.
    WAITING = "waiting"
    # The payment succeeded, but no event names an organization.
    UNASSIGNED = "unassigned"
    UNKNOWN_ORGANIZATION = "unknown_organization"
    # The event cannot be booked, because it has another currency or contradicts an earlier event.
    REFUSED = "refused"
    # Events of this type do not affect credit.
    IGNORED = "ignored"


# The outcomes that an operator should look at. If the outcome is one of the first two, the operator can
# assign the payment to an organization. A refused event has to be compared with its payment at the provider.
OPEN_OUTCOMES = (
    EventOutcome.UNKNOWN_ORGANIZATION,
    EventOutcome.UNASSIGNED,
    EventOutcome.REFUSED,
)


@dataclass(frozen=True, slots=True)
class Payment:
    """Contains the state of a payment according to all events about it."""

    id: str
    organization_id: OrganizationId | None
    livemode: bool
    # None if the payment has not succeeded yet.
    paid_picousd: int | None
    # The amount withdrawn by refunds and disputes, at most the paid amount.
    withdrawn_picousd: int


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """Shows a received event to operators. The outcome of a waiting event changes to booked when
    the event that it waits for arrives."""

    outcome: EventOutcome
    id: str
    type: str
    livemode: bool
    payment_id: str | None
    organization_id: OrganizationId | None
    # The amount of the event's payment; None if no event has reported that the payment succeeded.
    paid_picousd: int | None
    detail: str
    # How often the payment provider has delivered the event.
    deliveries: int
    received_at: int
