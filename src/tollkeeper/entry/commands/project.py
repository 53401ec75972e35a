"""`tollkeeper project`: an organization's projects."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tollkeeper.entry.commands.allowed_models import allow_models
from tollkeeper.entry.commands.arguments import (
    EveryModelOption,
    ModelsArgument,
    NameArgument,
    OrganizationArgument,
    ProjectArgument,
)
from tollkeeper.entry.commands.command import Invocation, command, noun_app, service_command
from tollkeeper.entry.commands.output import Listing, Record
from tollkeeper.tenants.organization import Project

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = noun_app("Manage the projects of an organization.")


@service_command(app, "create", example="tollkeeper project create Acme Web")
async def project_create(
    services: "Services", organization: OrganizationArgument, name: NameArgument
) -> Record:
    """Create a project in an organization."""
    return _record(
        await services.projects.project_create(
            await services.names.organization_named(organization), name
        )
    )


@service_command(app, "list", example="tollkeeper project list Acme")
async def project_list(services: "Services", organization: OrganizationArgument) -> Listing:
    """List an organization's projects, oldest first.

    The list includes archived projects."""
    organization_id = await services.names.organization_named(organization)
    # Raises if it doesn't exist.
    await services.organizations.organization_show(organization_id)
    projects = await services.projects.project_list(organization_id)
    return Listing(
        [project_view(project) for project in projects],
        columns=("id", "name", "status", "models", "created_at", "archived_at"),
        short_ids=("id",),
        optional=("archived_at", "models"),
    )


@service_command(app, "show", example="tollkeeper project show Web")
async def project_show(services: "Services", project: ProjectArgument) -> Record:
    """Show one project."""
    return _record(
        await services.projects.project_show(await services.names.project_named(project))
    )


@service_command(app, "rename", example="tollkeeper project rename Web Website")
async def project_rename(
    services: "Services", project: ProjectArgument, name: NameArgument
) -> Record:
    """Rename a project."""
    project_id = await services.names.project_named(project)
    return _record(await services.projects.project_rename(project_id, name))


@command(app, "allow-models", example="tollkeeper project allow-models Web 'claude-*' gpt-5-mini")
def project_allow_models(
    invocation: Invocation,
    project: ProjectArgument,
    models: ModelsArgument = None,
    every: EveryModelOption = False,
) -> Record:
    """Set the models that a project may use."""

    async def allow(services: "Services", entries: Sequence[str]) -> dict[str, object]:
        project_id = await services.names.project_named(project)
        return project_view(await services.projects.project_allow_models(project_id, entries))

    return allow_models(invocation, models, allow, every=every)


@service_command(app, "archive", example="tollkeeper project archive Web")
async def project_archive(services: "Services", project: ProjectArgument) -> Record:
    """Archive a project.

    Its keys stop working, and its records stay."""
    active = await services.projects.project_show(await services.names.project_named(project))
    await services.projects.project_archive(active.organization_id, active.id)
    return _record(await services.projects.project_show(active.id))


def project_view(project: Project) -> dict[str, object]:
    return {
        "id": project.id,
        "name": project.name,
        "status": project.status,
        "created_at": project.created_at,
        "archived_at": project.archived_at,
        "models": project.models,
        "organization_id": project.organization_id,
    }


def _record(project: Project) -> Record:
    return Record(project_view(project))
