"""Reads Stripe's webhook events, whose signature the caller has verified."""

from typing import Annotated, Any, TypeVar

import msgspec

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.money.payments.rule import (
    PICOUSD_PER_CENT,
    PaymentEvent,
    PaymentReport,
    Withdrawal,
    WithdrawalKind,
)

# Metadata key of a checkout session or a payment intent.
ORGANIZATION_KEY = "tollkeeper_organization"
_CURRENCY = "usd"

_Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,255}$")]
_Type = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_.]{1,100}$")]
_Cents = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
# Its stage, and whether money is withdrawn then. A higher stage replaces a lower one, in whatever
# order the reports arrive.
_REFUND_STAGES = {
    "pending": (1, True),
    "requires_action": (1, True),
    "succeeded": (2, True),
    # A refund may also fail after it succeeded.
    "failed": (3, False),
    "canceled": (3, False),
}
_DISPUTE_STAGES = {
    # The "warning" ones are inquiries, which withdraw no money.
    "warning_needs_response": (1, False),
    "warning_under_review": (1, False),
    "needs_response": (2, True),
    "under_review": (2, True),
    "warning_closed": (3, False),
    "prevented": (3, False),
    "lost": (4, True),
    "won": (5, False),
}


class _Data(msgspec.Struct):
    object: msgspec.Raw


class _Event(msgspec.Struct):
    id: _Id
    type: _Type
    livemode: bool
    data: _Data


class _Object(msgspec.Struct, kw_only=True):
    currency: str | None = None
    payment_intent: _Id | None = None


class _Session(_Object):
    payment_status: str
    amount_total: _Cents | None = None
    metadata: dict[str, Any] | None = None


class _Intent(_Object):
    id: _Id
    amount_received: _Cents
    metadata: dict[str, Any] | None = None


class _Charge(_Object):
    amount_refunded: _Cents


class _Withdrawal(_Object):
    id: _Id
    amount: _Cents
    status: str | None = None


class _Unbookable(Exception):
    """Raised for a valid event that cannot be booked as a change of credit. `refused` tells whether
    an operator has to look at the event."""

    def __init__(self, reason: str, *, refused: bool) -> None:
        self.reason = reason
        self.refused = refused


_T = TypeVar("_T", bound=_Object)
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def read_event(body: bytes) -> PaymentEvent:
    """InvalidRequest if it isn't Stripe's. If it can't be booked, there's a reason instead of a
    report."""
    event = _decode(body, _Event)
    report, reason, refused = None, "", False
    try:
        report = _report(event.type, event.data.object)
    except _Unbookable as exc:
        reason, refused = exc.reason, exc.refused
    except InvalidRequest as exc:
        reason, refused = exc.message, True
    return PaymentEvent(event.id, event.type, event.livemode, report, reason, refused)


def _report(kind: str, content: msgspec.Raw) -> PaymentReport:
    match kind:
        case "checkout.session.completed" | "checkout.session.async_payment_succeeded":
            session = _object(content, _Session)
            return PaymentReport(
                _payment_of(session),
                organization=_organization(session.metadata),
                paid_picousd=_picousd(session.amount_total or 0)
                if session.payment_status == "paid"
                else None,
            )
        case "payment_intent.succeeded":
            intent = _object(content, _Intent)
            return PaymentReport(
                intent.id,
                organization=_organization(intent.metadata),
                paid_picousd=_picousd(intent.amount_received),
            )
        case "charge.refunded":
            charge = _object(content, _Charge)
            refunded = _picousd(charge.amount_refunded)
            return PaymentReport(_payment_of(charge), refunded_picousd=refunded)
        case "refund.created" | "refund.updated" | "refund.failed" | "charge.refund.updated":
            return _withdrawal(content, WithdrawalKind.REFUND, _REFUND_STAGES)
        case _ if kind.startswith("charge.dispute."):
            return _withdrawal(content, WithdrawalKind.DISPUTE, _DISPUTE_STAGES)
    raise _Unbookable("events of this type change no credit", refused=False)


def _withdrawal(
    content: msgspec.Raw, kind: WithdrawalKind, stages: dict[str, tuple[int, bool]]
) -> PaymentReport:
    reported = _object(content, _Withdrawal)
    if reported.status not in stages:
        raise _Unbookable(f"the status of the {kind} is not known", refused=True)
    stage, withdrawn = stages[reported.status]
    amount = _picousd(reported.amount)
    return PaymentReport(
        _payment_of(reported), withdrawal=Withdrawal(reported.id, kind, amount, stage, withdrawn)
    )


def _object(content: msgspec.Raw, kind: type[_T]) -> _T:
    found = _decode(content, kind)
    if found.currency != _CURRENCY:
        raise _Unbookable(f"the currency is not {_CURRENCY}", refused=True)
    return found


def _payment_of(found: _Object) -> str:
    if found.payment_intent is None:
        raise _Unbookable("the event names no payment intent", refused=False)
    return found.payment_intent


def _organization(metadata: dict[str, Any] | None) -> str | None:
    organization = (metadata or {}).get(ORGANIZATION_KEY)
    return None if organization is None else str(organization)


def _picousd(cents: int) -> int:
    if cents == 0:
        raise _Unbookable("the amount is zero", refused=False)
    return cents * PICOUSD_PER_CENT


def _decode(content: bytes | msgspec.Raw, kind: type[_Struct]) -> _Struct:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"This is not an event of Stripe's format: {exc}") from None
