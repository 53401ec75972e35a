"""Projects: operators create and list them; operators and callers archive them."""

from dataclasses import replace
from uuid import uuid4

from tollkeeper.domain.access import OrganizationId, ProjectId
from tollkeeper.domain.errors import NotFound
from tollkeeper.domain.organization import Project
from tollkeeper.services.audit import record_change
from tollkeeper.services.clock import Clock
from tollkeeper.services.tenants.organizations import checked_name
from tollkeeper.storage import organizations, projects
from tollkeeper.storage.database import Database
from tollkeeper.storage.resolutions import lock_account


class Projects:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def project_create(self, organization_id: OrganizationId, name: str) -> Project:
        project = Project(
            id=ProjectId(uuid4()),
            organization_id=organization_id,
            name=checked_name(name),
            created_at=self._clock(),
            archived_at=None,
        )
        async with self._database.transaction() as connection:
            if await organizations.find(connection, organization_id) is None:
                raise NotFound(f"There is no organization {organization_id}.")
            await projects.insert(connection, project)
            await record_change(
                connection, organization_id, "project_create", "project", project.id, after=project
            )
        return project

    async def project_list(self, organization_id: OrganizationId) -> list[Project]:
        async with self._database.reading() as connection:
            return await projects.find_all(connection, organization_id)

    async def project_show(self, project_id: ProjectId) -> Project:
        async with self._database.reading() as connection:
            project = await projects.find_anywhere(connection, project_id)
        if project is None:
            raise NotFound(f"There is no project {project_id}.")
        return project

    async def project_archive(
        self, organization_id: OrganizationId, project_id: ProjectId
    ) -> ProjectId:
        """Archives the project. Succeeds also for a project that is archived already."""
        async with self._database.transaction(organization_id) as connection:
            before = await projects.find(connection, organization_id, project_id)
            if before is None:
                raise NotFound("There is no such project.", param="project_id")
            # Admission holds this lock too. So every admission that saw the project active has
            # ended before it is archived.
            await lock_account(connection, organization_id)
            now = self._clock()
            if await projects.archive(connection, organization_id, project_id, now):
                await record_change(
                    connection,
                    organization_id,
                    "project_archive",
                    "project",
                    project_id,
                    before=before,
                    after=replace(before, archived_at=now),
                )
        return project_id
