"""`tollkeeper project-key`: the keys of a project."""

from typing import Annotated, Any

import msgspec
import typer

from tollkeeper.api.organization.keys import project_key_view
from tollkeeper.cli.arguments import (
    ExpiresIn,
    KeyArgument,
    NameArgument,
    ProjectArgument,
    project_id,
    project_key_id,
)
from tollkeeper.cli.command import noun_app, service_command
from tollkeeper.cli.output import SHOWN_ONCE, Listing, Record
from tollkeeper.domain.organization import ProjectKey
from tollkeeper.services.use_cases import Services

app = noun_app("API keys of a project.")


@service_command(app, "create")
async def project_key_create(
    services: Services,
    project: ProjectArgument,
    name: NameArgument,
    permission: Annotated[
        list[str] | None,
        typer.Option(
            "--permission",
            metavar="P",
            help="What the key may do. May be repeated.",
            show_default="auth.project_key_default_permissions",
        ),
    ] = None,
    expires_in: ExpiresIn = None,
) -> Record:
    """Make a project key and print its value, which is never shown again."""
    key, value = await services.project_keys.project_key_create_by_operator(
        project_id(project), name, permission or None, expires_in
    )
    return Record(_view(services, key, value), note=SHOWN_ONCE)


@service_command(app, "list")
async def project_key_list(services: Services, project: ProjectArgument) -> Listing:
    """List a project's keys, revoked ones too, oldest first."""
    found = await services.project_keys.project_key_list(project_id(project))
    return Listing(
        [_view(services, key) for key in found],
        columns=("id", "name", "redacted_value", "status", "permissions", "last_used_at"),
    )


@service_command(app, "revoke")
async def project_key_revoke(services: Services, key: KeyArgument) -> Record:
    """Revoke a project key. This cannot be undone."""
    found = await services.project_keys.project_key_revoke(project_key_id(key))
    return Record(_view(services, found))


@service_command(app, "suspend")
async def project_key_suspend(services: Services, key: KeyArgument) -> Record:
    """Stop a project key from working until it is unsuspended."""
    found = await services.project_keys.project_key_suspend(project_key_id(key))
    return Record(_view(services, found))


@service_command(app, "unsuspend")
async def project_key_unsuspend(services: Services, key: KeyArgument) -> Record:
    """Let a suspended project key work again."""
    found = await services.project_keys.project_key_unsuspend(project_key_id(key))
    return Record(_view(services, found))


def _view(services: Services, key: ProjectKey, value: str | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(project_key_view(key, services.clock(), value))
    return shown | {"organization_id": key.organization_id, "project_id": key.project_id}
