"""`tollkeeper project-key`: a project's API keys."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tollkeeper.actions.project_keys import PROJECT_KEY_CREATE
from tollkeeper.core.access import PROJECT_KEY_PERMISSIONS
from tollkeeper.entry.commands.allowed_models import allow_models
from tollkeeper.entry.commands.amounts import seconds_of
from tollkeeper.entry.commands.arguments import (
    EveryModelOption,
    ExpiresIn,
    KeyArgument,
    ModelsArgument,
    NameArgument,
    ProjectArgument,
    customer_permissions,
    listed_permissions,
)
from tollkeeper.entry.commands.command import Invocation, command, noun_app, service_command
from tollkeeper.entry.commands.output import SHOWN_ONCE, Listing, Record
from tollkeeper.faces.organization.keys import project_key_view
from tollkeeper.tenants.organization import ProjectKey

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = noun_app("Manage the API keys of a project.")

_GRACE_DEFAULT = "24h"


@service_command(app, "create", example="tollkeeper project-key create Web app --expires-in 86400")
async def project_key_create(
    services: "Services",
    project: ProjectArgument,
    name: NameArgument,
    permission: Annotated[
        list[str] | None,
        typer.Option(
            "--permission",
            metavar="PERMISSION",
            help="Give the key this permission. May be repeated. Permissions: "
            f"{listed_permissions(PROJECT_KEY_PERMISSIONS)}.",
            autocompletion=customer_permissions,
            show_default="auth.project_key_default_permissions",
        ),
    ] = None,
    expires_in: ExpiresIn = None,
) -> Record:
    """Create a project key and print its value.

    The value cannot be shown again."""
    key, value = await PROJECT_KEY_CREATE.run(
        services, await services.names.project_named(project), name, permission, expires_in
    )
    return Record(_view(services, key, value), note=SHOWN_ONCE)


@service_command(app, "list", example="tollkeeper project-key list Web")
async def project_key_list(services: "Services", project: ProjectArgument) -> Listing:
    """List a project's keys, oldest first.

    The list includes revoked keys."""
    keys = await services.project_keys.project_key_list(await services.names.project_named(project))
    return Listing(
        [_view(services, key) for key in keys],
        columns=(
            *("id", "name", "redacted_value", "status", "permissions", "models"),
            *("last_used_at", "expires_at"),
        ),
        short_ids=("id",),
        optional=("expires_at", "last_used_at", "models", "permissions"),
    )


@service_command(app, "rename", example="tollkeeper project-key rename app website")
async def project_key_rename(services: "Services", key: KeyArgument, name: NameArgument) -> Record:
    """Rename a project key."""
    renamed = await services.project_keys.project_key_rename(
        await services.names.project_key_named(key), name
    )
    return Record(_view(services, renamed))


@service_command(app, "revoke", example="tollkeeper project-key revoke app")
async def project_key_revoke(services: "Services", key: KeyArgument) -> Record:
    """Revoke a project key. This cannot be undone."""
    revoked = await services.project_keys.project_key_revoke(
        await services.names.project_key_named(key)
    )
    return Record(_view(services, revoked))


@service_command(app, "suspend", example="tollkeeper project-key suspend app")
async def project_key_suspend(services: "Services", key: KeyArgument) -> Record:
    """Block a project key until it is unsuspended."""
    suspended = await services.project_keys.project_key_suspend(
        await services.names.project_key_named(key)
    )
    return Record(_view(services, suspended))


@service_command(app, "unsuspend", example="tollkeeper project-key unsuspend app")
async def project_key_unsuspend(services: "Services", key: KeyArgument) -> Record:
    """Let a suspended project key work again."""
    usable = await services.project_keys.project_key_unsuspend(
        await services.names.project_key_named(key)
    )
    return Record(_view(services, usable))


@command(app, "allow-models", example="tollkeeper project-key allow-models app 'claude-*'")
def project_key_allow_models(
    invocation: Invocation,
    key: KeyArgument,
    models: ModelsArgument = None,
    every: EveryModelOption = False,
) -> Record:
    """Set the models that a project key may use."""

    async def allow(services: "Services", entries: Sequence[str]) -> dict[str, Any]:
        key_id = await services.names.project_key_named(key)
        changed = await services.project_keys.project_key_allow_models(key_id, entries)
        return _view(services, changed)

    return allow_models(invocation, models, allow, every=every)


@service_command(app, "rotate", example="tollkeeper project-key rotate app --grace 24h")
async def project_key_rotate(
    services: "Services",
    key: KeyArgument,
    grace: Annotated[
        int,
        typer.Option(
            metavar="TIME",
            help="Let the old key work for this time (90s, 30m, 24h, 7d).",
            parser=seconds_of,
        ),
    ] = _GRACE_DEFAULT,  # type: ignore[assignment]  # Typer also parses the default.
) -> Record:
    """Replace a project key by a new key, and print the new key.

    The old key expires after a grace period. The value of the new key cannot be shown again."""
    rotated = await services.project_keys.project_key_rotate(
        await services.names.project_key_named(key), grace
    )
    replaced = {"id": rotated.old.id, "expires_at": rotated.old.expires_at}
    return Record(
        _view(services, rotated.new, rotated.value) | {"replaces": replaced}, note=SHOWN_ONCE
    )


def _view(services: "Services", key: ProjectKey, value: str | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(project_key_view(key, services.clock(), value))
    return shown | {
        "models": key.models,
        "organization_id": key.organization_id,
        "project_id": key.project_id,
    }
