"""`tollkeeper admin-key`: an organization's Admin API keys."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tollkeeper.core.access import ADMIN_PERMISSIONS, KeyId, OrganizationId
from tollkeeper.entry.commands.arguments import (
    ExpiresIn,
    KeyArgument,
    NameArgument,
    OrganizationArgument,
    admin_permissions,
    listed_permissions,
)
from tollkeeper.entry.commands.command import noun_app, service_command
from tollkeeper.entry.commands.output import SHOWN_ONCE, Listing, Record
from tollkeeper.faces.organization.keys import admin_key_view
from tollkeeper.tenants.organization import AdminKey

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

_PAGE_LENGTH = 1000

app = noun_app("Manage the Admin API keys of an organization.")


@service_command(app, "create", example="tollkeeper admin-key create Acme root --all-permissions")
async def admin_key_create(
    services: "Services",
    organization: OrganizationArgument,
    name: NameArgument,
    permission: Annotated[
        list[str] | None,
        typer.Option(
            "--permission",
            metavar="PERMISSION",
            help="Give the key this permission. May be repeated. Permissions: "
            f"{listed_permissions(ADMIN_PERMISSIONS)}.",
            autocompletion=admin_permissions,
        ),
    ] = None,
    all_permissions: Annotated[
        bool, typer.Option("--all-permissions", help="Give the key every permission.")
    ] = False,
    expires_in: ExpiresIn = None,
) -> Record:
    """Create an Admin API key and print its value.

    The value cannot be shown again."""
    if all_permissions == bool(permission):
        raise typer.BadParameter(
            "Give either --permission (once for each permission) or --all-permissions.",
            param_hint="--permission",
        )
    key, value = await services.admin_keys.admin_key_create(
        await services.names.organization_named(organization),
        name,
        ADMIN_PERMISSIONS if all_permissions else permission or (),
        expires_in,
    )
    return Record(_view(services, key) | {"value": value}, note=SHOWN_ONCE)


@service_command(app, "list", example="tollkeeper admin-key list Acme")
async def admin_key_list(services: "Services", organization: OrganizationArgument) -> Listing:
    """List an organization's Admin API keys, oldest first.

    Revoked keys are not listed."""
    organization_id = await services.names.organization_named(organization)
    # Raises if it doesn't exist.
    await services.organizations.organization_show(organization_id)
    return Listing(
        [_view(services, key) for key in await _all_keys(services, organization_id)],
        columns=(
            *("id", "name", "redacted_value", "status", "permissions", "last_used_at"),
            "expires_at",
        ),
        short_ids=("id",),
        optional=("expires_at", "last_used_at", "permissions"),
    )


@service_command(app, "rename", example="tollkeeper admin-key rename root ops")
async def admin_key_rename(services: "Services", key: KeyArgument, name: NameArgument) -> Record:
    """Rename an Admin API key."""
    key_id = await services.names.admin_key_named(key)
    return Record(_view(services, await services.admin_keys.admin_key_rename(key_id, name)))


@service_command(app, "revoke", example="tollkeeper admin-key revoke root")
async def admin_key_revoke(services: "Services", key: KeyArgument) -> Record:
    """Revoke an Admin API key. This cannot be undone."""
    admin_key = await services.admin_keys.admin_key_show(await services.names.admin_key_named(key))
    await services.admin_keys.admin_key_revoke(admin_key.organization_id, admin_key.id)
    return Record(_view(services, await services.admin_keys.admin_key_show(admin_key.id)))


async def _all_keys(services: "Services", organization: OrganizationId) -> list[AdminKey]:
    keys: list[AdminKey] = []
    after: KeyId | None = None
    while True:
        page = await services.admin_keys.admin_key_list(
            organization, after=after, limit=_PAGE_LENGTH
        )
        keys += page.keys
        if not page.has_more:
            return keys
        after = page.keys[-1].id


def _view(services: "Services", key: AdminKey) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(admin_key_view(key))
    return shown | {
        "status": key.status(services.clock()),
        "organization_id": key.organization_id,
    }
