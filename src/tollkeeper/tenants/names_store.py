"""Finds objects by name or the beginning of an id, for operators."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString
from uuid import UUID

from tollkeeper.core.access import OrganizationId
from tollkeeper.database.database import Connection

# Serialises those that give an organization a name.
_ORGANIZATION_NAMES_LOCK = 7461_0006


@dataclass(frozen=True, slots=True)
class NamedKind:
    """Two objects of an owner can't share a name while both are in use."""

    # In audit entries.
    object_kind: str
    table: LiteralString
    # `note` helps operators to tell objects with the same name apart.
    rows: LiteralString

    @property
    def noun(self) -> str:
        return self.object_kind.replace("_", " ")


ORGANIZATIONS = NamedKind(
    "organization",
    "organizations",
    """
    SELECT id, name, id AS organization_id, NULL::uuid AS owner_id, archived_at IS NULL AS in_use,
           CASE WHEN archived_at IS NULL THEN '' ELSE 'archived' END AS note
    FROM organizations
    """,
)
PROJECTS = NamedKind(
    "project",
    "projects",
    """
    SELECT p.id, p.name, p.organization_id, p.organization_id AS owner_id,
           p.archived_at IS NULL AS in_use,
           'of ' || o.name || CASE WHEN p.archived_at IS NULL THEN '' ELSE ', archived' END AS note
    FROM projects p JOIN organizations o ON o.id = p.organization_id
    """,
)
PROJECT_KEYS = NamedKind(
    "project_key",
    "project_keys",
    """
    SELECT id, name, organization_id, project_id AS owner_id,
        revoked_at IS NULL AND coalesce(expires_at > now(), true) AS in_use,
        redacted_value || CASE
        WHEN revoked_at IS NOT NULL THEN ', revoked' WHEN expires_at <= now() THEN ', expired'
        WHEN suspended_at IS NOT NULL THEN ', suspended' WHEN replaced_by IS NOT NULL
        THEN ', replaced' ELSE ', active' END AS note
    FROM project_keys
    """,
)
ADMIN_KEYS = NamedKind(
    "admin_key",
    "admin_keys",
    """
    SELECT id, name, organization_id, organization_id AS owner_id,
        revoked_at IS NULL AND coalesce(expires_at > now(), true) AS in_use,
        redacted_value || CASE
        WHEN revoked_at IS NOT NULL THEN ', revoked' WHEN expires_at <= now() THEN ', expired'
        ELSE ', active' END AS note
    FROM admin_keys
    """,
)


@dataclass(frozen=True, slots=True)
class Named:
    id: UUID
    name: str
    note: str


@dataclass(frozen=True, slots=True)
class NameOfId:
    id: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    id: str
    name: str


async def find(
    connection: Connection,
    kind: NamedKind,
    *,
    name: str,
    ids: tuple[UUID, UUID] | None,
    organization_id: OrganizationId | None,
    limit: int,
) -> list[Named]:
    """By name, ignoring case and stored spaces at the ends (the API keeps them in keys' names), or
    id range. One that's out of use gives way to one in use with the same owner and name."""
    low, high = ids or (None, None)
    cursor = await connection.execute(
        f"""
        WITH found AS (
            SELECT * FROM ({kind.rows}) named
            WHERE (lower(btrim(name)) = lower(%(name)s)
                   OR id BETWEEN %(low)s::uuid AND %(high)s::uuid)
              AND (%(organization)s::uuid IS NULL OR organization_id = %(organization)s)
        )
        SELECT id, name, note FROM found
        WHERE in_use OR NOT EXISTS (
            SELECT FROM found other WHERE other.in_use AND lower(other.name) = lower(found.name)
              AND other.owner_id IS NOT DISTINCT FROM found.owner_id)
        ORDER BY name, id LIMIT %(limit)s
        """,
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


async def lock_organization_names(connection: Connection) -> None:
    """Until this transaction ends."""
    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ORGANIZATION_NAMES_LOCK,))


async def find_in_use(
    connection: Connection, kind: NamedKind, *, name: str, owner_id: UUID | None, other_than: UUID
) -> UUID | None:
    """Ignores case; skips `other_than`."""
    cursor = await connection.execute(
        f"""
        SELECT id FROM ({kind.rows}) named
        WHERE in_use AND lower(name) = lower(%s) AND owner_id IS NOT DISTINCT FROM %s AND id <> %s
        LIMIT 1
        """,
        (name, owner_id, other_than),
        prepare=False,
    )
    row = await cursor.fetchone()
    return None if row is None else row[0]


async def rename(connection: Connection, kind: NamedKind, identity: UUID, name: str) -> None:
    await connection.execute(
        f"UPDATE {kind.table} SET name = %s WHERE id = %s",
        (name, identity),
        prepare=False,
    )


async def find_names(
    connection: Connection, ids: Sequence[UUID], policy_ids: Sequence[str]
) -> list[NameOfId]:
    """Ids without an object are left out."""
    kinds: LiteralString = " UNION ALL ".join(
        f"SELECT id::text, '{kind.table}', name FROM {kind.table} WHERE id = ANY (%(ids)s)"
        for kind in (ORGANIZATIONS, PROJECTS, PROJECT_KEYS, ADMIN_KEYS)
    )
    policies: LiteralString = (
        "SELECT id, 'policies', name FROM policies WHERE id = ANY (%(policies)s)"
    )
    cursor = await connection.execute(
        f"{kinds} UNION ALL {policies}",
        {"ids": list(ids), "policies": list(policy_ids)},
        prepare=False,
    )
    return [NameOfId(*row) for row in await cursor.fetchall()]


async def find_policies(
    connection: Connection,
    *,
    name: str,
    id_prefix: str | None,
    organization_id: OrganizationId | None,
    limit: int,
) -> Sequence[NamedPolicy]:
    """By name, ignoring case and stored spaces at the ends, or beginning of the id. No organization
    means all."""
    cursor = await connection.execute(
        """
        SELECT id, name FROM policies
        WHERE (lower(btrim(name)) = lower(%(name)s) OR starts_with(id, %(id_prefix)s))
          AND (%(organization)s::uuid IS NULL OR organization_id = %(organization)s)
        ORDER BY name, id LIMIT %(limit)s
        """,
        {
            "name": name,
            "id_prefix": id_prefix,
            "organization": organization_id,
            "limit": limit,
        },
        prepare=False,
    )
    return [NamedPolicy(*row) for row in await cursor.fetchall()]
