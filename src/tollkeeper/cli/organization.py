"""`tollkeeper organization`: organizations and the checks that models require of them."""

from typing import Annotated

import typer

from tollkeeper.cli.arguments import NameArgument, OrganizationArgument
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


@service_command(app, "create", example="tollkeeper organization create Acme")
async def organization_create(services: Services, name: NameArgument) -> Record:
    """Create an organization."""
    return _record(await services.organizations.organization_create(name))


@service_command(app, "list", example="tollkeeper organization list")
async def organization_list(services: Services) -> Listing:
    """List every organization, oldest first."""
    found = await services.organizations.organization_list()
    return Listing(
        [organization_view(organization) for organization in found],
        columns=("id", "name", "status", "checks", "created_at"),
        short_ids=("id",),
        optional=("status",),
    )


@service_command(app, "show", example="tollkeeper organization show Acme")
async def organization_show(services: Services, organization: OrganizationArgument) -> Record:
    """Show one organization."""
    return _record(
        await services.organizations.organization_show(
            await services.names.organization_named(organization)
        )
    )


@service_command(app, "rename", example="tollkeeper organization rename Acme 'Acme Ltd'")
async def organization_rename(
    services: Services, organization: OrganizationArgument, name: NameArgument
) -> Record:
    """Give an organization another name."""
    identity = await services.names.organization_named(organization)
    return _record(await services.organizations.organization_rename(identity, name))


@service_command(app, "archive", example="tollkeeper organization archive Acme")
async def organization_archive(services: Services, organization: OrganizationArgument) -> Record:
    """Archive an organization and its projects: its keys admit no call, and its records stay. This
    cannot be undone."""
    identity = await services.names.organization_named(organization)
    return _record(await services.organizations.organization_archive(identity))


@service_command(app, "grant-check", example="tollkeeper organization grant-check Acme kyc")
async def organization_grant_check(
    services: Services, organization: OrganizationArgument, check: Check
) -> Record:
    """Let an organization use the models that require this check."""
    identity = await services.names.organization_named(organization)
    return _record(await services.organizations.organization_grant_check(identity, check))


@service_command(app, "revoke-check", example="tollkeeper organization revoke-check Acme kyc")
async def organization_revoke_check(
    services: Services, organization: OrganizationArgument, check: Check
) -> Record:
    """Take a check away from an organization."""
    identity = await services.names.organization_named(organization)
    return _record(await services.organizations.organization_revoke_check(identity, check))


def organization_view(organization: Organization) -> dict[str, object]:
    return {
        "id": organization.id,
        "name": organization.name,
        "status": organization.status,
        "checks": organization.checks,
        "created_at": organization.created_at,
        "archived_at": organization.archived_at,
    }


def _record(organization: Organization) -> Record:
    return Record(organization_view(organization))
