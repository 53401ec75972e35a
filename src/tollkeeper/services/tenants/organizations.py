"""Creates and shows organizations, and grants the checks that models require. Operators only."""

from uuid import uuid4

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import InvalidRequest, NotFound
from tollkeeper.domain.organization import NAME_LENGTH_MAX, Organization
from tollkeeper.services.audit import record_change
from tollkeeper.services.clock import Clock
from tollkeeper.storage import organizations
from tollkeeper.storage.database import Connection, Database

_CHECK_LENGTH_MAX = 120


class Organizations:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def organization_create(self, name: str) -> Organization:
        organization = Organization(
            id=OrganizationId(uuid4()), name=checked_name(name), created_at=self._clock()
        )
        async with self._database.transaction() as connection:
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
        async with self._database.reading() as connection:
            return await organizations.find_all(connection)

    async def organization_show(self, organization_id: OrganizationId) -> Organization:
        async with self._database.reading() as connection:
            return await _find(connection, organization_id)

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


def checked_name(name: str, *, length_max: int = NAME_LENGTH_MAX) -> str:
    """Checks a name from an operator's command. Names in requests are checked by the wire types."""
    if not 1 <= len(name) <= length_max or "\x00" in name:
        raise InvalidRequest(f"A name has 1 to {length_max} characters.", param="name")
    return name
