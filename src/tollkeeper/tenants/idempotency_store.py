"""A row per object that was created with an Idempotency-Key, written in the object's
transaction."""

from dataclasses import dataclass
from typing import NamedTuple

from psycopg import errors as pg

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import IdempotencyConflict
from tollkeeper.database.database import Connection

# A second request waits this long for the first, then it's rejected.
_LOCK_TIMEOUT_MS = 3000


class RecordKey(NamedTuple):
    organization_id: OrganizationId
    operation: str
    key_digest: bytes


@dataclass(frozen=True, slots=True)
class Record:
    request_digest: bytes
    resource_id: str
    created_at: int
    # Of a created key, encrypted: a repeated request gets it again for a while.
    sealed_secret: bytes | None


async def claim(
    connection: Connection, key: RecordKey, *, request_digest: bytes, resource_id: str, now: int
) -> bool:
    """True for the first request with the key. A concurrent one waits for that transaction: False
    if it commits, otherwise True."""
    await connection.execute(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS:d}")
    try:
        cursor = await connection.execute(
            """
            INSERT INTO idempotency_records (organization_id, operation, key_digest, request_digest,
                                             resource_id, created_at)
            VALUES (%s, %s, %s, %s, %s, to_timestamp(%s)) ON CONFLICT DO NOTHING
            """,
            (*key, request_digest, resource_id, now),
        )
    except pg.LockNotAvailable as exc:
        raise IdempotencyConflict(
            "A request with this Idempotency-Key is still running. Try again when it has ended.",
            param="Idempotency-Key",
        ) from exc
    return cursor.rowcount == 1


async def find(connection: Connection, key: RecordKey) -> Record | None:
    cursor = await connection.execute(
        """
        SELECT request_digest, resource_id, extract(epoch FROM created_at)::bigint, sealed_secret
        FROM idempotency_records
        WHERE organization_id = %s AND operation = %s AND key_digest = %s
        """,
        key,
    )
    row = await cursor.fetchone()
    return None if row is None else Record(*row)


async def keep_secret(connection: Connection, key: RecordKey, sealed_secret: bytes) -> None:
    await connection.execute(
        """
        UPDATE idempotency_records SET sealed_secret = %s
        WHERE organization_id = %s AND operation = %s AND key_digest = %s
        """,
        (sealed_secret, *key),
    )


async def forget_secrets(connection: Connection, *, before: int) -> int:
    """Of those created until `before` (Unix time). Returns the number."""
    cursor = await connection.execute(
        """
        UPDATE idempotency_records SET sealed_secret = NULL
        WHERE sealed_secret IS NOT NULL AND created_at <= to_timestamp(%s)
        """,
        (before,),
    )
    return cursor.rowcount
