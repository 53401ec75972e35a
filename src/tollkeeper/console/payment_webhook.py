"""Receives payment events from Stripe. Reads nothing from an event before its signature is
verified."""

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tollkeeper.console.context import console_of
from tollkeeper.money.payments.rule import EventOutcome
from tollkeeper.money.payments.stripe_events import read_event
from tollkeeper.tenants.audit.rule import Actor, ActorKind
from tollkeeper.tenants.audit.service import acting_as

_log = structlog.get_logger("tollkeeper.console")
# An unassigned payment is not logged, because a later event often names its organization.
_LOGGED_OUTCOMES = (EventOutcome.UNKNOWN_ORGANIZATION, EventOutcome.REFUSED)


_OTHER_MODE = (
    "The secret that has signed this event is for the other mode: payments.webhook_secrets.live is "
    "for live events, payments.webhook_secrets.test for events of the test mode."
)


async def receive(request: Request) -> Response:
    """Processes one event. Stripe sends an event again for days until it gets a 2xx response. So
    the response to a valid event is 2xx unless a repetition of the event can succeed."""
    console = console_of(request)
    if console.signed_livemode is None:
        raise HTTPException(404)
    body = await request.body()
    livemode = console.signed_livemode(body, request.headers.get("stripe-signature", ""))
    if livemode is None:
        return PlainTextResponse("The signature is not valid.", 400)
    event = read_event(body)
    if event.livemode is not livemode:
        # Stripe repeats the event, so it isn't lost if an operator has confused the settings.
        _log.warning("a payment event has the secret of the other mode", id=event.id)
        return PlainTextResponse(_OTHER_MODE, 400)
    with acting_as(Actor(ActorKind.SYSTEM, f"stripe {event.id}")):
        booking = await console.services.payments.payment_receive(event)
    if booking.outcome in _LOGGED_OUTCOMES:
        _log.warning("a payment event was not booked", id=event.id, reason=booking.detail)
    # Lets Stripe repeat an event for an unknown organization, because an operator may create the
    # organization, or restore a newer backup, before the repetition.
    repeat = booking.outcome is EventOutcome.UNKNOWN_ORGANIZATION
    text = f"{booking.outcome}: {booking.detail}" if booking.detail else booking.outcome
    return PlainTextResponse(text, 422 if repeat else 200)
