"""Manages projects. Only operators create and rename them and choose their models. Console users
also list them; console users and clients also archive them."""

from collections.abc import Iterable
from dataclasses import replace
from uuid import uuid4

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.allowed_models import checked_entries
from tollkeeper.core.errors import NotFound, StateConflict
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.account_locks import lock_account_rows
from tollkeeper.database.database import Connection, Database
from tollkeeper.tenants import names_store as names
from tollkeeper.tenants import organizations_store as organizations
from tollkeeper.tenants import projects_store as projects
from tollkeeper.tenants.audit.service import record_change
from tollkeeper.tenants.names import checked_name, rename, require_unused_name
from tollkeeper.tenants.organization import Project


class Projects:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def project_create(
        self, organization_id: OrganizationId, name: str, *, within: Connection | None = None
    ) -> Project:
        """`within` is as in `Database.transaction`."""
        project = Project(
            id=ProjectId(uuid4()),
            organization_id=organization_id,
            name=checked_name(name),
            created_at=self._clock(),
            archived_at=None,
        )
        async with self._database.transaction(within=within) as connection:
            await lock_active_organization(connection, organization_id)
            await require_unused_name(
                connection, names.PROJECTS, project.name, project.id, organization_id
            )
            await projects.insert(connection, project)
            await record_change(
                connection, organization_id, "project_create", "project", project.id, after=project
            )
        return project

    async def project_list(self, organization_id: OrganizationId) -> list[Project]:
        async with self._database.autocommit() as connection:
            return await projects.find_all(connection, organization_id)

    async def project_show(self, project_id: ProjectId) -> Project:
        async with self._database.autocommit() as connection:
            return await _find(connection, project_id)

    async def project_rename(self, project_id: ProjectId, name: str) -> Project:
        name = checked_name(name)
        async with self._database.transaction() as connection:
            found = await _find(connection, project_id)
            await organizations.lock(connection, found.organization_id)
            # It may have changed before the lock.
            found = await _find(connection, project_id)
            return await rename(connection, names.PROJECTS, found, name, found.organization_id)

    async def project_allow_models(self, project_id: ProjectId, models: Iterable[str]) -> Project:
        """An empty list means all models."""
        entries = checked_entries(models)
        async with self._database.transaction() as connection:
            before = await _find(connection, project_id)
            # Admission takes this too, so every later one reads the new list. The project may have
            # changed before the lock, so read it again.
            await lock_account_rows(connection, before.organization_id)
            before = await _find(connection, project_id)
            await projects.write_models(connection, before.organization_id, project_id, entries)
            after = replace(before, models=entries)
            await record_change(
                connection,
                before.organization_id,
                "project_allow_models",
                "project",
                project_id,
                before=before,
                after=after,
                only_differing=True,
            )
        return after

    async def project_archive(
        self, organization_id: OrganizationId, project_id: ProjectId
    ) -> ProjectId:
        """Does nothing if it's archived."""
        async with self._database.transaction(organization_id) as connection:
            before = await projects.find(connection, organization_id, project_id)
            if before is None:
                raise NotFound("There is no such project.", param="project_id")
            # Admission takes this too, so those that have read the active project end first.
            await lock_account_rows(connection, organization_id)
            await archive_project(connection, before, self._clock())
        return project_id


async def _find(connection: Connection, project_id: ProjectId) -> Project:
    project = await projects.find_anywhere(connection, project_id)
    if project is None:
        raise NotFound(f"There is no project {project_id}.")
    return project


async def archive_project(connection: Connection, project: Project, now: int) -> None:
    """Does nothing if it's archived. Hold the lock of the organization's account."""
    if await projects.archive(connection, project.organization_id, project.id, now):
        await record_change(
            connection,
            project.organization_id,
            "project_archive",
            "project",
            project.id,
            before=project,
            after=replace(project, archived_at=now),
        )


async def lock_active_organization(connection: Connection, organization_id: OrganizationId) -> None:
    """Required to create an organization's objects: it can't be archived until the transaction
    ends. Raises NotFound or StateConflict."""
    await organizations.lock(connection, organization_id)
    organization = await organizations.find(connection, organization_id)
    if organization is None:
        raise NotFound(f"There is no organization {organization_id}.")
    if organization.archived_at is not None:
        raise StateConflict("The organization is archived.")
