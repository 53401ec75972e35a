"""`tollkeeper organization`: organizations and their checks, such as `kyc`, which an operator
grants and some models require."""

from typing import TYPE_CHECKING, Annotated

import typer

from tollkeeper.entry.commands.arguments import NameArgument, OrganizationArgument
from tollkeeper.entry.commands.command import noun_app, service_command
from tollkeeper.entry.commands.output import Listing, Record
from tollkeeper.tenants.organization import Organization

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = noun_app("Manage organizations, the tenants that pay for calls.")

Check = Annotated[
    str,
    typer.Argument(
        metavar="CHECK",
        help="The name of a check, as in the setting required_checks of a model.",
        show_default=False,
    ),
]


@service_command(app, "create", example="tollkeeper organization create Acme")
async def organization_create(services: "Services", name: NameArgument) -> Record:
    """Create an organization."""
    return _record(await services.organizations.organization_create(name))


@service_command(app, "list", example="tollkeeper organization list")
async def organization_list(services: "Services") -> Listing:
    """List all organizations, oldest first."""
    organizations = await services.organizations.organization_list()
    return Listing(
        [organization_view(organization) for organization in organizations],
        columns=("id", "name", "status", "checks", "created_at"),
        short_ids=("id",),
        optional=("status",),
    )


@service_command(app, "show", example="tollkeeper organization show Acme")
async def organization_show(services: "Services", organization: OrganizationArgument) -> Record:
    """Show one organization."""
    return _record(
        await services.organizations.organization_show(
            await services.names.organization_named(organization)
        )
    )


@service_command(app, "rename", example="tollkeeper organization rename Acme 'Acme Ltd'")
async def organization_rename(
    services: "Services", organization: OrganizationArgument, name: NameArgument
) -> Record:
    """Rename an organization."""
    organization_id = await services.names.organization_named(organization)
    return _record(await services.organizations.organization_rename(organization_id, name))


@service_command(app, "archive", example="tollkeeper organization archive Acme")
async def organization_archive(services: "Services", organization: OrganizationArgument) -> Record:
    """Archive an organization and all its projects.

    Its project keys stop working, and its records stay. This cannot be undone."""
    organization_id = await services.names.organization_named(organization)
    return _record(await services.organizations.organization_archive(organization_id))


@service_command(app, "grant-check", example="tollkeeper organization grant-check Acme kyc")
async def organization_grant_check(
    services: "Services", organization: OrganizationArgument, check: Check
) -> Record:
    """Let an organization use models that require a check."""
    organization_id = await services.names.organization_named(organization)
    return _record(await services.organizations.organization_grant_check(organization_id, check))


@service_command(app, "revoke-check", example="tollkeeper organization revoke-check Acme kyc")
async def organization_revoke_check(
    services: "Services", organization: OrganizationArgument, check: Check
) -> Record:
    """Remove a check from an organization.

    The organization can then no longer use models that require the check."""
    organization_id = await services.names.organization_named(organization)
    return _record(await services.organizations.organization_revoke_check(organization_id, check))


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
