"""Creates events as Stripe sends them, with the fields that the gateway reads."""

import json
import secrets
from importlib import import_module
from typing import Any

from tollkeeper.money.payments.stripe_events import ORGANIZATION_KEY

SECRET = "whsec_for_tests"


def new_payment() -> str:
    return f"pi_{secrets.token_hex(12)}"


def event(kind: str, content: dict[str, Any], *, livemode: bool = True) -> bytes:
    made = {
        "id": f"evt_{secrets.token_hex(12)}",
        "object": "event",
        "api_version": "2025-09-30.clover",
        "created": 1_790_000_000,
        "type": kind,
        "livemode": livemode,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": None},
        "data": {"object": {"livemode": livemode, "currency": "usd", **content}},
    }
    return json.dumps(made, indent=2).encode()


def succeeded(payment: str, cents: int, organization: object = None, **changed: Any) -> bytes:
    """Returns the event of a payment intent that succeeded."""
    livemode = changed.pop("livemode", True)
    content = {
        "id": payment,
        "object": "payment_intent",
        "amount": cents,
        "amount_received": cents,
        "status": "succeeded",
        "metadata": _metadata(organization),
        **changed,
    }
    return event("payment_intent.succeeded", content, livemode=livemode)


def completed(payment: str, cents: int, organization: object = None, **changed: Any) -> bytes:
    """Returns the event of a completed checkout session of the payment."""
    livemode = changed.pop("livemode", True)
    content = {
        "id": f"cs_{payment[3:]}",
        "object": "checkout.session",
        "mode": "payment",
        "payment_intent": payment,
        "payment_status": "paid",
        "amount_total": cents,
        "metadata": _metadata(organization),
        **changed,
    }
    return event("checkout.session.completed", content, livemode=livemode)


def charge_refunded(payment: str, cents: int, *, livemode: bool = True) -> bytes:
    """Returns the event of a refund. `cents` is the total amount that was refunded so far."""
    content = {
        "id": f"ch_{payment[3:]}",
        "object": "charge",
        "payment_intent": payment,
        "amount_refunded": cents,
    }
    return event("charge.refunded", content, livemode=livemode)


def refund(
    payment: str, identity: str, cents: int, status: str = "succeeded", *, livemode: bool = True
) -> bytes:
    content = {
        "id": identity,
        "object": "refund",
        "payment_intent": payment,
        "amount": cents,
        "status": status,
    }
    kind = {"pending": "created", "failed": "failed"}.get(status, "updated")
    return event(f"refund.{kind}", content, livemode=livemode)


def dispute(
    payment: str, identity: str, cents: int, status: str, *, livemode: bool = True
) -> bytes:
    content = {
        "id": identity,
        "object": "dispute",
        "payment_intent": payment,
        "amount": cents,
        "status": status,
    }
    kind = "closed" if status in ("won", "lost", "warning_closed") else "created"
    return event(f"charge.dispute.{kind}", content, livemode=livemode)


def signed(body: bytes, secret: str = SECRET, *, at: int | None = None) -> dict[str, str]:
    """Returns the headers of a request with this body, including its signature."""
    # Imported here, because the import takes longer than collecting the tests.
    signature = import_module("stripe").WebhookSignature
    header = signature.generate_signature_header(body.decode(), secret, at)
    return {"Stripe-Signature": header, "Content-Type": "application/json"}


def _metadata(organization: object) -> dict[str, str]:
    return {} if organization is None else {ORGANIZATION_KEY: str(organization)}
