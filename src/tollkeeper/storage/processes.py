"""SQL of leases: a process proves that it lives by its heartbeat, by the server's clock."""

from uuid import UUID

from tollkeeper.domain.access import OrganizationId
from tollkeeper.storage.database import Connection

# Only one sweep at a time, in all processes together.
_SWEEP_LOCK = 7461_0002


async def heartbeat(connection: Connection, process_id: UUID) -> None:
    await connection.execute(
        """
        INSERT INTO processes (id) VALUES (%s)
        ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp()
        """,
        (process_id,),
    )


async def sign_off(connection: Connection, process_id: UUID) -> None:
    """The process ends and holds nothing any more."""
    await connection.execute("DELETE FROM processes WHERE id = %s", (process_id,))


async def try_sweep_lock(connection: Connection) -> bool:
    cursor = await connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (_SWEEP_LOCK,))
    row = await cursor.fetchone()
    return row is not None and bool(row[0])


async def find_dead(connection: Connection, *, lease_s: float) -> list[UUID]:
    cursor = await connection.execute(
        """
        SELECT id FROM processes
        WHERE heartbeat_at < clock_timestamp() - make_interval(secs => %s) ORDER BY id
        """,
        (lease_s,),
    )
    return [row[0] for row in await cursor.fetchall()]


async def find_holds(connection: Connection, process_id: UUID) -> dict[OrganizationId, list[UUID]]:
    """What the process held when it died: not resolved, not marked yet, by organization."""
    cursor = await connection.execute(
        """
        SELECT r.organization_id, array_agg(r.id) FROM reservations r
        JOIN processes p ON p.id = r.process_id
        WHERE p.id = %s AND r.held_at >= p.started_at - interval '1 minute'
          AND NOT EXISTS (SELECT FROM resolutions d
              WHERE d.organization_id = r.organization_id AND d.reservation_id = r.id)
          AND NOT EXISTS (SELECT FROM unsettled_marks m
              WHERE m.organization_id = r.organization_id AND m.reservation_id = r.id)
        GROUP BY r.organization_id ORDER BY r.organization_id
        """,
        (process_id,),
    )
    return {row[0]: row[1] for row in await cursor.fetchall()}
