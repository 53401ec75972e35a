"""Manages organizations and the checks granted to them. Only operators change them; in the console,
an organization's own users can see theirs."""

from dataclasses import replace
from uuid import uuid4

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.account_locks import lock_account_rows
from tollkeeper.database.database import Connection, Database
from tollkeeper.tenants import names_store as names
from tollkeeper.tenants import organizations_store as organizations
from tollkeeper.tenants import projects_store as projects
from tollkeeper.tenants.audit.service import record_change
from tollkeeper.tenants.names import checked_name, rename, require_unused_name
from tollkeeper.tenants.organization import Organization
from tollkeeper.tenants.projects import archive_project

_CHECK_LENGTH_MAX = 120


class Organizations:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def organization_create(
        self, name: str, *, within: Connection | None = None
    ) -> Organization:
        """`within` is as in `Database.transaction`."""
        organization = Organization(
            id=OrganizationId(uuid4()), name=checked_name(name), created_at=self._clock()
        )
        async with self._database.transaction(within=within) as connection:
            await names.lock_organization_names(connection)
            await require_unused_name(
                connection, names.ORGANIZATIONS, organization.name, organization.id
            )
            await organizations.insert(connection, organization)
            await record_change(
                connection,
                organization.id,
                "organization_create",
                "organization",
                organization.id,
                after=organization,
            )
        return organization

    async def organization_list(self) -> list[Organization]:
        async with self._database.autocommit() as connection:
            return await organizations.find_all(connection)

    async def organization_show(self, organization_id: OrganizationId) -> Organization:
        async with self._database.autocommit() as connection:
            return await _find(connection, organization_id)

    async def organization_rename(self, organization_id: OrganizationId, name: str) -> Organization:
        name = checked_name(name)
        async with self._database.transaction() as connection:
            await names.lock_organization_names(connection)
            found = await _find(connection, organization_id)
            return await rename(connection, names.ORGANIZATIONS, found, name)

    async def organization_archive(self, organization_id: OrganizationId) -> Organization:
        """Also its projects, so no further call with their keys is admitted. Does nothing if it's
        archived."""
        async with self._database.transaction() as connection:
            # Creating a project takes this lock too, so there'll be no new ones.
            await organizations.lock(connection, organization_id)
            before = await _find(connection, organization_id)
            if before.archived_at is not None:
                return before
            # Admission takes this too, so those that have read an active project end first.
            await lock_account_rows(connection, organization_id)
            after = replace(before, archived_at=self._clock())
            assert after.archived_at is not None
            await organizations.archive(connection, organization_id, after.archived_at)
            for project in await projects.find_all(connection, organization_id):
                await archive_project(connection, project, after.archived_at)
            await record_change(
                connection,
                organization_id,
                "organization_archive",
                "organization",
                organization_id,
                before=before,
                after=after,
            )
        return after

    async def organization_grant_check(
        self, organization_id: OrganizationId, check: str
    ) -> Organization:
        if not 1 <= len(check) <= _CHECK_LENGTH_MAX:
            raise InvalidRequest(f"A check has 1 to {_CHECK_LENGTH_MAX} characters.", param="check")
        async with self._database.transaction() as connection:
            before = await _find(connection, organization_id)
            await organizations.grant_check(connection, organization_id, check, self._clock())
            return await _record_checks(connection, "organization_grant_check", before)

    async def organization_revoke_check(
        self, organization_id: OrganizationId, check: str
    ) -> Organization:
        async with self._database.transaction() as connection:
            before = await _find(connection, organization_id)
            if not await organizations.revoke_check(connection, organization_id, check):
                raise NotFound(f"The organization does not hold the check {check!r}.")
            return await _record_checks(connection, "organization_revoke_check", before)


async def _find(connection: Connection, organization_id: OrganizationId) -> Organization:
    organization = await organizations.find(connection, organization_id)
    if organization is None:
        raise NotFound(f"There is no organization {organization_id}.")
    return organization


async def _record_checks(
    connection: Connection, operation: str, before: Organization
) -> Organization:
    after = await _find(connection, before.id)
    if after.checks != before.checks:
        await record_change(
            connection,
            before.id,
            operation,
            "organization",
            before.id,
            before={"checks": before.checks},
            after={"checks": after.checks},
        )
    return after
