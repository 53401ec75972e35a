"""`tollkeeper credit`: grants credit to an organization and shows its balance."""

from typing import TYPE_CHECKING, Annotated

import typer

from tollkeeper.cli.amounts import AmountArgument
from tollkeeper.cli.arguments import OrganizationArgument
from tollkeeper.cli.command import noun_app, service_command
from tollkeeper.cli.output import Record
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.use_cases import Services

if TYPE_CHECKING:
    from tollkeeper.domain.views import Balance

app = noun_app("Credit of an organization.")


@service_command(app, "grant", example="tollkeeper credit grant Acme 25.50 --note 'invoice 17'")
async def credit_grant(
    services: Services,
    organization: OrganizationArgument,
    amount: AmountArgument,
    note: Annotated[str, typer.Option(help="The reason, which is stored with the grant.")] = "",
) -> Record:
    """Grant credit to an organization. A negative amount takes available credit back."""
    grant = await services.billing.credit_grant(
        await services.names.organization_named(organization), amount, note
    )
    return Record(
        {
            "id": grant.id,
            "organization_id": grant.organization_id,
            "amount": usd_from_picousd(grant.amount_picousd),
            "note": grant.note,
            **balance_view(grant.balance),
        }
    )


# Otherwise a negative amount would be taken for an unknown option.
app.registered_commands[-1].context_settings = {"ignore_unknown_options": True}


@service_command(app, "show", example="tollkeeper credit show Acme")
async def credit_show(services: Services, organization: OrganizationArgument) -> Record:
    """Show how much was granted, and how much of it is available, held, settled or unsettled."""
    identity = await services.names.organization_named(organization)
    balance = await services.billing.credit_show(identity)
    return Record({"organization_id": identity, **balance_view(balance)})


def balance_view(balance: "Balance") -> dict[str, str]:
    """In USD. `settled` includes overage."""
    return {
        "granted": usd_from_picousd(balance.granted_picousd),
        "available": usd_from_picousd(balance.available_picousd),
        "held": usd_from_picousd(balance.held_picousd),
        "settled": usd_from_picousd(balance.settled_picousd),
        "unsettled": usd_from_picousd(balance.unsettled_picousd),
    }
