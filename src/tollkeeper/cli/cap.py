"""`tollkeeper cap`: the most that an organization or a project may spend."""

from typing import Annotated

import typer

from tollkeeper.cli.amounts import AmountArgument
from tollkeeper.cli.arguments import OrganizationArgument
from tollkeeper.cli.command import noun_app, service_command
from tollkeeper.cli.output import Listing, Record
from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.use_cases import Services
from tollkeeper.storage.accounts import CapUse

app = noun_app("Spending caps of an organization and of its projects.")

ProjectOption = Annotated[
    str | None,
    typer.Option(
        "--project",
        metavar="P",
        help="A project of the organization, whose own cap is meant.",
        show_default="the organization's cap",
    ),
]


@service_command(app, "set", example="tollkeeper cap set Acme 100.00 --period month")
async def cap_set(
    services: Services,
    organization: OrganizationArgument,
    amount: AmountArgument,
    period: Annotated[
        CapPeriod,
        typer.Option(
            help="Whether the cap applies to each UTC month or to all time.", show_default=False
        ),
    ],
    project: ProjectOption = None,
) -> Record:
    """Cap what may be held and spent in a period. Calls that would exceed it are refused."""
    identity = await services.names.organization_named(organization)
    of_project = None if project is None else await services.names.project_named(project, identity)
    use = await services.caps.cap_set(identity, amount, period, of_project)
    return Record(_view(identity, use))


@service_command(app, "clear", example="tollkeeper cap clear Acme --project Web")
async def cap_clear(
    services: Services, organization: OrganizationArgument, project: ProjectOption = None
) -> Record:
    """Remove a cap."""
    identity = await services.names.organization_named(organization)
    of_project = None if project is None else await services.names.project_named(project, identity)
    await services.caps.cap_clear(identity, of_project)
    return Record(
        {
            "organization_id": identity,
            "project_id": of_project,
            "amount": None,
            "period": None,
        }
    )


@service_command(app, "show", example="tollkeeper cap show Acme")
async def cap_show(services: Services, organization: OrganizationArgument) -> Listing:
    """Show every cap of an organization and of its projects, and how much of it is used."""
    identity = await services.names.organization_named(organization)
    found = await services.caps.cap_show(identity)
    return Listing(
        [_view(identity, use) for use in found],
        columns=("project_id", "amount", "period", "held", "spent", "remaining"),
        short_ids=("project_id",),
        optional=("held",),
    )


def _view(organization: OrganizationId, use: CapUse) -> dict[str, object]:
    """Amounts in USD. A cap without a project is the organization's own."""
    return {
        "organization_id": organization,
        "project_id": use.project_id,
        "amount": usd_from_picousd(use.cap.amount_picousd),
        "period": use.cap.period,
        "held": usd_from_picousd(use.held_picousd),
        "spent": usd_from_picousd(use.spent_picousd),
        "remaining": usd_from_picousd(use.remaining_picousd),
    }
