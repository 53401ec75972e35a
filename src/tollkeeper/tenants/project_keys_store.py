"""The SQL of project keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from tollkeeper.core.access import KeyId, KeyStatus, OrganizationId, ProjectId, key_status
from tollkeeper.database.database import Connection, RoundTrips
from tollkeeper.database.round_trips import Statement
from tollkeeper.tenants.organization import ProjectKey

_COLUMNS: LiteralString = """
    k.id, k.organization_id, k.project_id, p.name, k.name, k.redacted_value, k.permissions,
    extract(epoch FROM k.created_at)::bigint, extract(epoch FROM k.last_used_at)::bigint,
    extract(epoch FROM k.expires_at)::bigint, extract(epoch FROM k.suspended_at)::bigint,
    extract(epoch FROM k.revoked_at)::bigint, k.models
"""
_FROM: LiteralString = """
    FROM project_keys k JOIN projects p ON p.organization_id = k.organization_id AND p.id = k.project_id
"""


@dataclass(frozen=True, slots=True)
class PresentedProjectKey:
    """Only authentication may read the digest."""

    digest: bytes
    organization_id: OrganizationId
    project_id: ProjectId
    id: KeyId
    permissions: Sequence[str]
    revoked: bool
    suspended: bool
    expires_at: int | None
    project_archived: bool
    models: Sequence[str] | None
    project_models: Sequence[str] | None

    def status(self, now: int) -> KeyStatus:
        return key_status(
            revoked=self.revoked, suspended=self.suspended, expires_at=self.expires_at, now=now
        )


async def insert(connection: Connection, key: ProjectKey, digest: bytes) -> None:
    await connection.execute(
        """
        INSERT INTO project_keys (organization_id, id, project_id, name, digest, redacted_value,
                                  permissions, created_at, expires_at, models)
        VALUES (%s, %s, %s, %s, %s, %s, %s, to_timestamp(%s), to_timestamp(%s), %s)
        """,
        (
            key.organization_id,
            key.id,
            key.project_id,
            key.name,
            digest,
            key.redacted_value,
            list(key.permissions),
            key.created_at,
            key.expires_at,
            list(key.models) or None,
        ),
    )


async def find(
    connection: Connection, organization_id: OrganizationId, key_id: KeyId
) -> ProjectKey | None:
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} {_FROM} WHERE k.organization_id = %s AND k.id = %s",
        (organization_id, key_id),
    )
    row = await cursor.fetchone()
    return None if row is None else _key(row)


async def find_anywhere(connection: Connection, key_id: KeyId) -> ProjectKey | None:
    """For operators only: doesn't check the organization."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} {_FROM} WHERE k.id = %s",
        (key_id,),
    )
    row = await cursor.fetchone()
    return None if row is None else _key(row)


async def find_by_digest(
    connection: Connection, organization_id: OrganizationId, digest: bytes
) -> ProjectKey | None:
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} {_FROM} WHERE k.organization_id = %s AND k.digest = %s",
        (organization_id, digest),
    )
    row = await cursor.fetchone()
    return None if row is None else _key(row)


async def find_by_digests(trips: RoundTrips, digests: list[bytes]) -> list[PresentedProjectKey]:
    lookup = _FIND_BY_DIGESTS.bind([f"\\x{digest.hex()}" for digest in digests])
    [rows] = await trips.run(lookup)
    return [PresentedProjectKey(*row) for row in rows]


# For every call whose key isn't cached, so it's prepared and takes one round trip.
_FIND_BY_DIGESTS = Statement(
    "tollkeeper_keys_by_digest",
    """
    SELECT k.digest, k.organization_id, k.project_id, k.id, k.permissions,
        k.revoked_at IS NOT NULL, k.suspended_at IS NOT NULL,
        extract(epoch FROM k.expires_at)::bigint, p.archived_at IS NOT NULL, k.models, p.models
    FROM project_keys k JOIN projects p ON p.organization_id = k.organization_id AND p.id = k.project_id
    WHERE k.digest = ANY (%s::bytea[])
    """,
)


async def find_of_project(
    connection: Connection, organization_id: OrganizationId, project_id: ProjectId
) -> list[ProjectKey]:
    cursor = await connection.execute(
        f"""
        SELECT {_COLUMNS} {_FROM} WHERE k.organization_id = %s AND k.project_id = %s
        ORDER BY k.created_at, k.id
        """,
        (organization_id, project_id),
    )
    return [_key(row) for row in await cursor.fetchall()]


async def count_usable(
    connection: Connection, organization_id: OrganizationId, project_id: ProjectId, now: int
) -> int:
    """Neither revoked nor expired; suspended ones count."""
    cursor = await connection.execute(
        """
        SELECT count(*) FROM project_keys
        WHERE organization_id = %s AND project_id = %s AND revoked_at IS NULL
          AND (expires_at IS NULL OR expires_at > to_timestamp(%s))
        """,
        (organization_id, project_id, now),
    )
    (number,) = await cursor.fetchone() or (0,)
    return int(number)


async def find_of_organization(
    connection: Connection, organization_id: OrganizationId, *, limit: int
) -> list[ProjectKey]:
    cursor = await connection.execute(
        f"""
        SELECT {_COLUMNS} {_FROM} WHERE k.organization_id = %s
        ORDER BY k.created_at DESC, k.id LIMIT %s
        """,
        (organization_id, limit),
    )
    return [_key(row) for row in await cursor.fetchall()]


async def unknown_ids(
    connection: Connection, organization_id: OrganizationId, key_ids: list[KeyId]
) -> list[KeyId]:
    cursor = await connection.execute(
        """
        SELECT wanted.id FROM unnest(%s::uuid[]) WITH ORDINALITY AS wanted (id, position)
        LEFT JOIN project_keys k ON k.organization_id = %s AND k.id = wanted.id
        WHERE k.id IS NULL ORDER BY wanted.position
        """,
        (key_ids, organization_id),
    )
    return [row[0] for row in await cursor.fetchall()]


async def revoke(connection: Connection, key: ProjectKey, now: int) -> bool:
    """False if it was already revoked."""
    cursor = await connection.execute(
        """
        UPDATE project_keys SET revoked_at = to_timestamp(%s)
        WHERE organization_id = %s AND id = %s AND revoked_at IS NULL
        """,
        (now, key.organization_id, key.id),
    )
    return cursor.rowcount == 1


async def suspend(connection: Connection, key: ProjectKey, now: int) -> bool:
    """False if it was already suspended or revoked."""
    cursor = await connection.execute(
        """
        UPDATE project_keys SET suspended_at = to_timestamp(%s)
        WHERE organization_id = %s AND id = %s AND revoked_at IS NULL AND suspended_at IS NULL
        """,
        (now, key.organization_id, key.id),
    )
    return cursor.rowcount == 1


async def unsuspend(connection: Connection, key: ProjectKey) -> bool:
    """False if it isn't suspended, or is revoked."""
    cursor = await connection.execute(
        """
        UPDATE project_keys SET suspended_at = NULL
        WHERE organization_id = %s AND id = %s AND revoked_at IS NULL AND suspended_at IS NOT NULL
        """,
        (key.organization_id, key.id),
    )
    return cursor.rowcount == 1


async def prolong(connection: Connection, key: ProjectKey, expires_at: int) -> bool:
    """False if it's revoked, or expires even later."""
    cursor = await connection.execute(
        """
        UPDATE project_keys SET expires_at = to_timestamp(%(expires_at)s)
        WHERE organization_id = %(organization)s AND id = %(key)s AND revoked_at IS NULL
          AND expires_at < to_timestamp(%(expires_at)s)
        """,
        {"expires_at": expires_at, "organization": key.organization_id, "key": key.id},
    )
    return cursor.rowcount == 1


async def write_models(connection: Connection, key: ProjectKey, models: Sequence[str]) -> bool:
    """Empty means every model. False if it's revoked."""
    cursor = await connection.execute(
        """
        UPDATE project_keys SET models = %s
        WHERE organization_id = %s AND id = %s AND revoked_at IS NULL
        """,
        (list(models) or None, key.organization_id, key.id),
    )
    return cursor.rowcount == 1


async def replace(
    connection: Connection, key: ProjectKey, replaced_by: KeyId, expires_at: int
) -> bool:
    """`key` then ends at `expires_at`, if not sooner. False if it was already replaced."""
    cursor = await connection.execute(
        """
        UPDATE project_keys
        SET replaced_by = %s, expires_at = least(expires_at, to_timestamp(%s))
        WHERE organization_id = %s AND id = %s AND replaced_by IS NULL
        """,
        (replaced_by, expires_at, key.organization_id, key.id),
    )
    # The same chain of rotated keys, so it shares the old one's caps.
    await connection.execute(
        """
        UPDATE project_keys n SET first_key_id = coalesce(o.first_key_id, o.id) FROM project_keys o
        WHERE n.organization_id = %(organization)s AND n.id = %(new)s
          AND o.organization_id = n.organization_id AND o.id = %(old)s
        """,
        {"organization": key.organization_id, "new": replaced_by, "old": key.id},
    )
    return cursor.rowcount == 1


async def record_use(
    connection: Connection, used: Sequence[tuple[OrganizationId, KeyId, int]]
) -> None:
    """Organization, key and Unix time each."""
    await connection.execute(
        """
        UPDATE project_keys k SET last_used_at = greatest(k.last_used_at, to_timestamp(used.at))
        FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[]) AS used (organization_id, id, at)
        WHERE k.organization_id = used.organization_id AND k.id = used.id
        """,
        ([one[0] for one in used], [one[1] for one in used], [one[2] for one in used]),
        prepare=False,
    )


def _key(row: tuple[Any, ...]) -> ProjectKey:
    return ProjectKey(
        id=row[0],
        organization_id=row[1],
        project_id=row[2],
        project_name=row[3],
        name=row[4],
        redacted_value=row[5],
        permissions=tuple(row[6]),
        created_at=row[7],
        last_used_at=row[8],
        expires_at=row[9],
        suspended_at=row[10],
        revoked_at=row[11],
        models=tuple(row[12] or ()),
    )
