"""`tollkeeper project`: the projects of an organization."""

from tollkeeper.cli.arguments import (
    NameArgument,
    OrganizationArgument,
    ProjectArgument,
    organization_id,
    project_id,
)
from tollkeeper.cli.command import noun_app, service_command
from tollkeeper.cli.output import Listing, Record
from tollkeeper.domain.organization import Project
from tollkeeper.services.use_cases import Services

app = noun_app("Projects of an organization.")


@service_command(app, "create")
async def project_create(
    services: Services, organization: OrganizationArgument, name: NameArgument
) -> Record:
    """Make a project in an organization."""
    return _record(await services.projects.project_create(organization_id(organization), name))


@service_command(app, "list")
async def project_list(services: Services, organization: OrganizationArgument) -> Listing:
    """List an organization's projects, archived ones too, oldest first."""
    identity = organization_id(organization)
    await services.organizations.organization_show(identity)
    found = await services.projects.project_list(identity)
    return Listing(
        [project_view(project) for project in found],
        columns=("id", "name", "status", "created_at", "archived_at"),
    )


@service_command(app, "show")
async def project_show(services: Services, project: ProjectArgument) -> Record:
    """Show one project."""
    return _record(await services.projects.project_show(project_id(project)))


@service_command(app, "archive")
async def project_archive(services: Services, project: ProjectArgument) -> Record:
    """Archive a project: its keys stop working, and its records stay."""
    found = await services.projects.project_show(project_id(project))
    await services.projects.project_archive(found.organization_id, found.id)
    return _record(await services.projects.project_show(found.id))


def project_view(project: Project) -> dict[str, object]:
    return {
        "id": project.id,
        "name": project.name,
        "status": project.status,
        "created_at": project.created_at,
        "archived_at": project.archived_at,
        "organization_id": project.organization_id,
    }


def _record(project: Project) -> Record:
    return Record(project_view(project))
