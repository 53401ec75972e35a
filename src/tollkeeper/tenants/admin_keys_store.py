"""The SQL of admin keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from tollkeeper.core.access import KeyId, OrganizationId
from tollkeeper.database.database import Connection, RoundTrips
from tollkeeper.database.round_trips import Statement
from tollkeeper.tenants.organization import AdminKey

_COLUMNS: LiteralString = """
    id, organization_id, name, redacted_value, permissions,
    extract(epoch FROM created_at)::bigint, extract(epoch FROM last_used_at)::bigint,
    extract(epoch FROM expires_at)::bigint, extract(epoch FROM revoked_at)::bigint
"""


@dataclass(frozen=True, slots=True)
class AdminKeyWithDigest:
    """Only authentication may read the digest."""

    key: AdminKey
    digest: bytes


async def insert(connection: Connection, key: AdminKey, digest: bytes) -> None:
    # More precise than `key.created_at`, so keys created within one second have an order.
    await connection.execute(
        """
        INSERT INTO admin_keys (organization_id, id, name, digest, redacted_value, permissions,
                                created_at, expires_at)
        VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp(), to_timestamp(%s))
        """,
        (
            key.organization_id,
            key.id,
            key.name,
            digest,
            key.redacted_value,
            list(key.permissions),
            key.expires_at,
        ),
    )


async def find(
    connection: Connection, organization_id: OrganizationId, key_id: KeyId
) -> AdminKey | None:
    """Even a revoked one, because a page may begin after it."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM admin_keys WHERE organization_id = %s AND id = %s",
        (organization_id, key_id),
    )
    row = await cursor.fetchone()
    return None if row is None else _key(row)


async def find_anywhere(connection: Connection, key_id: KeyId) -> AdminKey | None:
    """For operators only: doesn't check the organization."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM admin_keys WHERE id = %s",
        (key_id,),
    )
    row = await cursor.fetchone()
    return None if row is None else _key(row)


async def find_by_digests(trips: RoundTrips, digests: list[bytes]) -> list[AdminKeyWithDigest]:
    lookup = _FIND_BY_DIGESTS.bind([f"\\x{digest.hex()}" for digest in digests])
    [rows] = await trips.run(lookup)
    return [AdminKeyWithDigest(key=_key(row[:-1]), digest=row[-1]) for row in rows]


_FIND_BY_DIGESTS = Statement(
    "tollkeeper_admin_keys_by_digest",
    f"SELECT {_COLUMNS}, digest FROM admin_keys WHERE digest = ANY (%s::bytea[])",
)


async def find_page(
    connection: Connection,
    organization_id: OrganizationId,
    *,
    after: KeyId | None,
    limit: int,
    descending: bool,
) -> list[AdminKey]:
    """Unrevoked ones in order of creation. The key `after` may be revoked."""
    comparison, direction = ("<", "DESC") if descending else (">", "ASC")
    cursor = await connection.execute(
        f"""
        SELECT {_COLUMNS} FROM admin_keys
        WHERE organization_id = %(organization)s AND revoked_at IS NULL
          AND (%(after)s::uuid IS NULL OR (created_at, id) {comparison} (
              SELECT created_at, id FROM admin_keys
              WHERE organization_id = %(organization)s AND id = %(after)s))
        ORDER BY created_at {direction}, id {direction} LIMIT %(limit)s
        """,
        {"organization": organization_id, "after": after, "limit": limit},
    )
    return [_key(row) for row in await cursor.fetchall()]


async def revoke(
    connection: Connection, organization_id: OrganizationId, key_id: KeyId, now: int
) -> bool:
    """False if it doesn't exist or was already revoked."""
    cursor = await connection.execute(
        """
        UPDATE admin_keys SET revoked_at = to_timestamp(%s)
        WHERE organization_id = %s AND id = %s AND revoked_at IS NULL
        """,
        (now, organization_id, key_id),
    )
    return cursor.rowcount == 1


async def record_use(
    connection: Connection, used: Sequence[tuple[OrganizationId, KeyId, int]]
) -> None:
    """Organization, key and Unix time each."""
    await connection.execute(
        """
        UPDATE admin_keys k SET last_used_at = greatest(k.last_used_at, to_timestamp(used.at))
        FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[]) AS used (organization_id, id, at)
        WHERE k.organization_id = used.organization_id AND k.id = used.id
        """,
        ([one[0] for one in used], [one[1] for one in used], [one[2] for one in used]),
        prepare=False,
    )


def _key(row: tuple[Any, ...]) -> AdminKey:
    return AdminKey(
        id=row[0],
        organization_id=row[1],
        name=row[2],
        redacted_value=row[3],
        permissions=tuple(row[4]),
        created_at=row[5],
        last_used_at=row[6],
        expires_at=row[7],
        revoked_at=row[8],
    )
