"""Locks accounts. Every change of an organization, a project or a key holds this lock, so that it takes
effect before the next hold."""

from tollkeeper.core.access import OrganizationId
from tollkeeper.database.database import Connection


async def lock_account_rows(connection: Connection, *organizations: OrganizationId) -> None:
    """In a fixed order. Every admission locks its account first, so until this transaction ends
    none is admitted, and earlier ones are committed or rolled back."""
    await connection.execute(
        "SELECT FROM accounts WHERE organization_id = ANY (%s) ORDER BY organization_id FOR UPDATE",
        (list(organizations),),
    )
