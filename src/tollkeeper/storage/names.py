"""SQL that finds what an operator means by a name or by the beginning of an id."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString
from uuid import UUID

from tollkeeper.domain.access import OrganizationId
from tollkeeper.storage.database import Connection

# The note of a row tells it from others with the same name.
ORGANIZATIONS: LiteralString = (
    "SELECT id, name, '' AS note, id AS organization_id FROM organizations"
)
PROJECTS: LiteralString = """
    SELECT p.id, p.name, p.organization_id,
           'of ' || o.name || CASE WHEN p.archived_at IS NULL THEN '' ELSE ', archived' END AS note
    FROM projects p JOIN organizations o ON o.id = p.organization_id
"""
PROJECT_KEYS: LiteralString = """
    SELECT id, name, organization_id, redacted_value || CASE
        WHEN revoked_at IS NOT NULL THEN ', revoked' WHEN expires_at <= now() THEN ', expired'
        WHEN suspended_at IS NOT NULL THEN ', suspended' WHEN replaced_by IS NOT NULL
        THEN ', replaced' ELSE ', active' END AS note
    FROM project_keys
"""
ADMIN_KEYS: LiteralString = """
    SELECT id, name, organization_id, redacted_value || CASE
        WHEN revoked_at IS NOT NULL THEN ', revoked' WHEN expires_at <= now() THEN ', expired'
        ELSE ', active' END AS note
    FROM admin_keys
"""


@dataclass(frozen=True, slots=True)
class Named:
    id: UUID
    name: str
    note: str


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    id: str
    name: str


async def find(
    connection: Connection,
    table: LiteralString,
    *,
    name: str,
    ids: tuple[UUID, UUID] | None,
    organization_id: OrganizationId | None,
    limit: int,
) -> list[Named]:
    """Rows with this name in any case, or with an id in the range."""
    low, high = ids or (None, None)
    cursor = await connection.execute(
        f"""
        SELECT id, name, note FROM ({table}) found
        WHERE (lower(name) = lower(%(name)s) OR id BETWEEN %(low)s::uuid AND %(high)s::uuid)
          AND (%(organization)s::uuid IS NULL OR organization_id = %(organization)s)
        ORDER BY name, id LIMIT %(limit)s
        """,  # noqa: S608 - the table is one of the constants above
        {
            "name": name,
            "low": low,
            "high": high,
            "organization": organization_id,
            "limit": limit,
        },
        prepare=False,
    )
    return [Named(*row) for row in await cursor.fetchall()]


async def find_policies(connection: Connection, *, text: str, limit: int) -> Sequence[NamedPolicy]:
    """Policies whose name is the text in any case, or whose id begins with it."""
    cursor = await connection.execute(
        """
        SELECT id, name FROM policies WHERE lower(name) = lower(%(text)s)
           OR starts_with(id, %(text)s) ORDER BY name, id LIMIT %(limit)s
        """,
        {"text": text, "limit": limit},
        prepare=False,
    )
    return [NamedPolicy(*row) for row in await cursor.fetchall()]
