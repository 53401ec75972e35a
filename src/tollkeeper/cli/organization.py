"""`tollkeeper organization`: organizations and the checks that models require of them."""

from typing import Annotated

import typer

from tollkeeper.cli.arguments import NameArgument, OrganizationArgument, organization_id
from tollkeeper.cli.command import noun_app, service_command
from tollkeeper.cli.output import Listing, Record
from tollkeeper.domain.organization import Organization
from tollkeeper.services.use_cases import Services

app = noun_app("Organizations and the checks they hold.")

Check = Annotated[
    str,
    typer.Argument(
        metavar="CHECK", help="A name that models list in required_checks.", show_default=False
    ),
]


@service_command(app, "create")
async def organization_create(services: Services, name: NameArgument) -> Record:
    """Make an organization."""
    return _record(await services.organizations.organization_create(name))


@service_command(app, "list")
async def organization_list(services: Services) -> Listing:
    """List every organization, oldest first."""
    found = await services.organizations.organization_list()
    return Listing(
        [organization_view(organization) for organization in found],
        columns=("id", "name", "checks", "created_at"),
    )


@service_command(app, "show")
async def organization_show(services: Services, organization: OrganizationArgument) -> Record:
    """Show one organization."""
    return _record(await services.organizations.organization_show(organization_id(organization)))


@service_command(app, "grant-check")
async def organization_grant_check(
    services: Services, organization: OrganizationArgument, check: Check
) -> Record:
    """Let an organization use the models that require this check."""
    identity = organization_id(organization)
    return _record(await services.organizations.organization_grant_check(identity, check))


@service_command(app, "revoke-check")
async def organization_revoke_check(
    services: Services, organization: OrganizationArgument, check: Check
) -> Record:
    """Take a check away from an organization."""
    identity = organization_id(organization)
    return _record(await services.organizations.organization_revoke_check(identity, check))


def organization_view(organization: Organization) -> dict[str, object]:
    return {
        "id": organization.id,
        "name": organization.name,
        "checks": organization.checks,
        "created_at": organization.created_at,
    }


def _record(organization: Organization) -> Record:
    return Record(organization_view(organization))
