"""Lists the events of the payment provider, and assigns payments to organizations."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.action import Question
from tollkeeper.console.amounts import exact_usd
from tollkeeper.console.changes import answer_form, done
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import Form, Refused, organization_id
from tollkeeper.console.rendering import render
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.money.payments.rule import Payment
from tollkeeper.setup.services import Services

# The maximum number of rows of each table.
_SHOWN_MAX = 100


async def show(request: Request, refused: Refused | None = None) -> Response:
    services = console_of(request).services
    open_events = await services.payments.payment_event_list(open_only=True, limit=_SHOWN_MAX)
    open_ids = {event.id for event in open_events}
    newest = await services.payments.payment_event_list(limit=_SHOWN_MAX)
    organizations = await services.organizations.organization_list()
    return render(
        request,
        "payments.html",
        nav="payments",
        title="Payments",
        refused=refused,
        open_events=open_events,
        other_events=[event for event in newest if event.id not in open_ids],
        shown_max=_SHOWN_MAX,
        organizations=organizations,
        names={one.id: one.name for one in organizations},
    )


async def assign(request: Request) -> Response:
    services = console_of(request).services

    async def ask(form: Form) -> Question:
        payment = await services.payments.payment_show(_payment_id(form))
        organization = await services.organizations.organization_show(_organization_id(form))
        if payment.organization_id is not None:
            raise StateConflict(
                f"The payment belongs to the organization {payment.organization_id} already.",
                param="payment",
            )
        return await _question(services, payment, organization.id, organization.name)

    async def handle(form: Form) -> Response:
        payment = await services.payments.payment_assign(_payment_id(form), _organization_id(form))
        if payment.paid_picousd is None:
            return done(
                *(request, "/payments"),
                "The payment is assigned. It adds credit when it succeeds.",
            )
        credit = exact_usd(_credit(payment, payment.paid_picousd))
        return done(request, "/payments", f"The payment is assigned: its credit is {credit}.")

    return await answer_form(request, handle, show, ask=ask, back="/payments")


async def _question(
    services: Services, payment: Payment, identity: OrganizationId, name: str
) -> Question:
    facts = {
        "Payment": payment.id,
        "Mode": "live" if payment.livemode else "test",
        "Organization": name,
        "Paid": exact_usd(payment.paid_picousd),
    }
    final = "The payment cannot be assigned to another organization later."
    if payment.paid_picousd is None:
        return Question(
            f"Assign the payment to {name}?",
            "No event has reported yet that the payment succeeded. When an event reports this, the "
            f"organization gets the credit. {final}",
            "Assign payment",
            facts=facts,
        )
    credit = _credit(payment, payment.paid_picousd)
    available = (await services.accounts.credit_show(identity)).available_picousd
    return Question(
        f"Assign {exact_usd(credit)} to {name}?",
        f"The organization can spend this amount immediately. {final}",
        f"Assign {exact_usd(credit)}",
        facts={
            **facts,
            "Withdrawn by refunds and disputes": exact_usd(payment.withdrawn_picousd),
            "Available now": exact_usd(available),
            "Available afterwards": exact_usd(available + credit),
        },
    )


def _credit(payment: Payment, paid_picousd: int) -> int:
    """Returns the credit that the organization has from the payment."""
    return paid_picousd - payment.withdrawn_picousd


def _payment_id(form: Form) -> str:
    text = form.text("payment")
    if not (text.isascii() and text.isprintable()):
        raise InvalidRequest("A payment id has only ASCII characters.", param="payment")
    return text


def _organization_id(form: Form) -> OrganizationId:
    try:
        return organization_id(form.text("organization"))
    except NotFound as exc:
        raise NotFound(exc.message, param="organization") from None
