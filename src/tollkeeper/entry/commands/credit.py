"""`tollkeeper credit`: grants, withdrawals, balances and payment events."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollkeeper.actions.credit import CREDIT_GRANT
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.reports import TIME_MAX
from tollkeeper.entry.commands.amounts import AmountArgument
from tollkeeper.entry.commands.arguments import OrganizationArgument, UntilOption
from tollkeeper.entry.commands.command import noun_app, service_command
from tollkeeper.entry.commands.output import Listing, Record
from tollkeeper.money.payments.rule import ADDING_KINDS, WITHDRAWING_KINDS, GrantKind, RecordedEvent

if TYPE_CHECKING:
    from tollkeeper.core.views import Balance
    from tollkeeper.setup.services import Services

NoteOption = Annotated[str, typer.Option(help="Store this reason with the change of credit.")]
LimitOption = Annotated[int, typer.Option(metavar="N", help="List at most N.", min=1, max=1000)]
app = noun_app("Grant, withdraw and show an organization's credit.")


@service_command(app, "grant", example="tollkeeper credit grant Acme 25.50 --note 'invoice 17'")
async def credit_grant(
    services: "Services",
    organization: OrganizationArgument,
    amount: AmountArgument,
    note: NoteOption = "",
    kind: Annotated[
        GrantKind | None,
        typer.Option(
            help=f"Record the grant as this kind: {', '.join(ADDING_KINDS)}.", show_default="grant"
        ),
    ] = None,
) -> Record:
    """Grant credit to an organization.

    A negative amount withdraws available credit."""
    return await _grant_credit(services, organization, amount, note, kind)


# Or a negative amount such as -5 would be an unknown option.
app.registered_commands[-1].context_settings = {"ignore_unknown_options": True}


@service_command(app, "withdraw", example="tollkeeper credit withdraw Acme 10 --kind refund")
async def credit_withdraw(
    services: "Services",
    organization: OrganizationArgument,
    amount: AmountArgument,
    note: NoteOption = "",
    kind: Annotated[
        GrantKind | None,
        typer.Option(
            help=f"Record the withdrawal as this kind: {', '.join(WITHDRAWING_KINDS)}.",
            show_default="withdrawal",
        ),
    ] = None,
) -> Record:
    """Withdraw available credit from an organization."""
    return await _grant_credit(services, organization, -amount, note, kind or GrantKind.WITHDRAWAL)


async def _grant_credit(
    services: "Services", organization: str, amount: int, note: str, kind: GrantKind | None
) -> Record:
    grant = await CREDIT_GRANT.run(
        services, await services.names.organization_named(organization), amount, note, kind
    )
    return Record(
        {
            "id": grant.id,
            "organization_id": grant.organization_id,
            "amount": usd_from_picousd(grant.amount_picousd),
            "kind": grant.kind,
            "note": grant.note,
            **balance_view(grant.balance),
        }
    )


@service_command(app, "list", example="tollkeeper credit list Acme")
async def credit_list(
    services: "Services",
    organization: OrganizationArgument,
    until: UntilOption = None,
    limit: LimitOption = 20,
) -> Listing:
    """List an organization's grants and withdrawals, newest first."""
    grants = await services.accounts.credit_list(
        await services.names.organization_named(organization),
        until=TIME_MAX if until is None else until,
        limit=limit,
    )
    rows = [
        {
            "id": grant.id,
            "kind": grant.kind,
            "amount": usd_from_picousd(grant.amount_picousd),
            "note": grant.note,
            "payment_id": grant.payment_id,
            "granted_at": grant.granted_at,
        }
        for grant in grants
    ]
    return Listing(rows, columns=("granted_at", "kind", "amount", "note"))


@service_command(app, "events", example="tollkeeper credit events --open")
async def credit_events(
    services: "Services",
    open_only: Annotated[
        bool, typer.Option("--open", help="List only events that need an operator.")
    ] = False,
    limit: LimitOption = 20,
) -> Listing:
    """List events from the payment provider, newest first.

    The column `outcome` says how the gateway processed the event."""
    events = await services.payments.payment_event_list(open_only=open_only, limit=limit)
    return Listing(
        [_event_view(event) for event in events],
        columns=("received_at", "type", "payment_id", "outcome", "deliveries", "detail"),
        optional=("deliveries",),
    )


def _event_view(event: RecordedEvent) -> dict[str, Any]:
    view = asdict(event)
    paid = view.pop("paid_picousd")
    return {**view, "paid": None if paid is None else usd_from_picousd(paid)}


@service_command(app, "assign", example="tollkeeper credit assign pi_3Nabc Acme")
async def credit_assign(
    services: "Services",
    payment: Annotated[
        str,
        typer.Argument(
            metavar="PAYMENT", help="The id of Stripe's payment intent.", show_default=False
        ),
    ],
    organization: OrganizationArgument,
) -> Record:
    """Assign a payment to an organization.

    Use this for a payment whose events name no organization of this installation."""
    organization_id = await services.names.organization_named(organization)
    assigned = await services.payments.payment_assign(payment, organization_id)
    paid = assigned.paid_picousd
    return Record(
        {
            "payment_id": assigned.id,
            "organization_id": assigned.organization_id,
            "paid": None if paid is None else usd_from_picousd(paid),
            "withdrawn": usd_from_picousd(assigned.withdrawn_picousd),
        }
    )


@service_command(app, "show", example="tollkeeper credit show Acme")
async def credit_show(services: "Services", organization: OrganizationArgument) -> Record:
    """Show an organization's balance.

    The command shows the granted credit and the parts into which it is divided: available, held for
    calls in flight, settled (spent), and unsettled (held for calls whose cost is unknown)."""
    organization_id = await services.names.organization_named(organization)
    balance = await services.accounts.credit_show(organization_id)
    return Record({"organization_id": organization_id, **balance_view(balance)})


def balance_view(balance: "Balance") -> dict[str, str]:
    """In USD. `settled` includes overage."""
    return {
        "granted": usd_from_picousd(balance.granted_picousd),
        "available": usd_from_picousd(balance.available_picousd),
        "held": usd_from_picousd(balance.held_picousd),
        "settled": usd_from_picousd(balance.settled_picousd),
        "unsettled": usd_from_picousd(balance.unsettled_picousd),
    }
