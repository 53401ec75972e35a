"""Organizations and their checks (approvals that some models require)."""

from typing import Any

from tollkeeper.core.access import OrganizationId
from tollkeeper.database.database import Connection
from tollkeeper.tenants.organization import Organization

_COLUMNS = """
    o.id, o.name, extract(epoch FROM o.created_at)::bigint,
    ARRAY(SELECT c.name FROM organization_checks c WHERE c.organization_id = o.id ORDER BY c.name),
    extract(epoch FROM o.archived_at)::bigint
"""


async def insert(connection: Connection, organization: Organization) -> None:
    await connection.execute(
        "INSERT INTO organizations (id, name, created_at) VALUES (%s, %s, to_timestamp(%s))",
        (organization.id, organization.name, organization.created_at),
    )
    await connection.execute(
        "INSERT INTO accounts (organization_id) VALUES (%s)", (organization.id,)
    )


async def find(connection: Connection, organization_id: OrganizationId) -> Organization | None:
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM organizations o WHERE o.id = %s",
        (organization_id,),
    )
    row = await cursor.fetchone()
    return None if row is None else _organization(row)


async def archive(connection: Connection, organization_id: OrganizationId, now: int) -> None:
    await connection.execute(
        "UPDATE organizations SET archived_at = to_timestamp(%s) WHERE id = %s",
        (now, organization_id),
    )


async def lock(connection: Connection, organization_id: OrganizationId) -> None:
    """Until this transaction ends. You can still add rows that refer to it."""
    await connection.execute(
        "SELECT FROM organizations WHERE id = %s FOR NO KEY UPDATE", (organization_id,)
    )


async def find_all(connection: Connection) -> list[Organization]:
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM organizations o ORDER BY o.created_at, o.id"
    )
    return [_organization(row) for row in await cursor.fetchall()]


async def checks_of(connection: Connection, organization_id: OrganizationId) -> frozenset[str]:
    cursor = await connection.execute(
        "SELECT name FROM organization_checks WHERE organization_id = %s", (organization_id,)
    )
    return frozenset(row[0] for row in await cursor.fetchall())


async def grant_check(
    connection: Connection, organization_id: OrganizationId, check: str, now: int
) -> None:
    """Again changes nothing."""
    await connection.execute(
        """
        INSERT INTO organization_checks (organization_id, name, granted_at)
        VALUES (%s, %s, to_timestamp(%s)) ON CONFLICT DO NOTHING
        """,
        (organization_id, check, now),
    )


async def revoke_check(connection: Connection, organization_id: OrganizationId, check: str) -> bool:
    """False if it doesn't have it."""
    cursor = await connection.execute(
        "DELETE FROM organization_checks WHERE organization_id = %s AND name = %s",
        (organization_id, check),
    )
    return cursor.rowcount == 1


def _organization(row: tuple[Any, ...]) -> Organization:
    identity, name, created_at, checks, archived_at = row
    return Organization(identity, name, created_at, tuple(checks), archived_at)
