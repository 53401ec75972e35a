"""SQL of leases: a process shows by its heartbeat that it lives. Times are those of the server."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import LiteralString
from uuid import UUID

from tollkeeper.domain.access import OrganizationId
from tollkeeper.storage.database import Connection

# An advisory lock: only one process at a time looks for dead processes.
_SWEEP_LOCK = 7461_0002
# Holds of a dead process are looked for in windows of time, each in a statement of its own, from its
# last heartbeat back to the longest time that a call can last.
_WINDOW_S = 1800
_WINDOWS = 24 * 2


HEARTBEAT: LiteralString = """
    INSERT INTO processes (id) VALUES (%s)
    ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp()
"""


async def heartbeat(connection: Connection, process_id: UUID) -> None:
    await connection.execute(HEARTBEAT, (process_id,))


async def sign_off(connection: Connection, process_id: UUID) -> None:
    """Removes the registration of a process that ends and holds nothing any more."""
    await connection.execute("DELETE FROM processes WHERE id = %s", (process_id,))


async def try_sweep_lock(connection: Connection) -> bool:
    """Takes the lock until `free_sweep_lock` or the end of the connection; False where it is taken."""
    cursor = await connection.execute("SELECT pg_try_advisory_lock(%s)", (_SWEEP_LOCK,))
    row = await cursor.fetchone()
    return row is not None and bool(row[0])


async def free_sweep_lock(connection: Connection) -> None:
    await connection.execute("SELECT pg_advisory_unlock(%s)", (_SWEEP_LOCK,))


async def find_silent(connection: Connection, *, lease_s: float) -> dict[UUID, datetime]:
    """Processes without a heartbeat for the length of a lease, with the time of their last one. A
    heartbeat from the future counts as old: the server's clock was set back since."""
    cursor = await connection.execute(
        """
        SELECT id, heartbeat_at FROM processes
        WHERE heartbeat_at < clock_timestamp() - make_interval(secs => %(lease_s)s)
           OR heartbeat_at > clock_timestamp() + make_interval(secs => %(lease_s)s)
        ORDER BY id
        """,
        {"lease_s": lease_s},
    )
    return {row[0]: row[1] for row in await cursor.fetchall()}


async def forget_dead(connection: Connection, process_id: UUID, heartbeat_at: datetime) -> bool:
    """Removes the registration of a dead process; False where it has sent a heartbeat since. A hold
    is a heartbeat too, so no hold can have been made that recovery did not see."""
    cursor = await connection.execute(
        "DELETE FROM processes WHERE id = %s AND heartbeat_at = %s", (process_id, heartbeat_at)
    )
    return cursor.rowcount == 1


async def find_holds(
    connection: Connection, process_id: UUID, heartbeat_at: datetime
) -> AsyncIterator[tuple[OrganizationId, list[UUID]]]:
    """Reservations of the process that are neither resolved nor marked, by organization."""
    cursor = await connection.execute("SELECT least(%s, clock_timestamp())", (heartbeat_at,))
    [[last]] = await cursor.fetchall()
    newest = datetime.max.replace(tzinfo=UTC)
    for interval in range(1, _WINDOWS + 1):
        oldest = last - timedelta(seconds=interval * _WINDOW_S)
        cursor = await connection.execute(_FIND_HOLDS, (process_id, oldest, newest))
        newest = oldest
        for organization_id, reservations in await cursor.fetchall():
            yield organization_id, reservations


_FIND_HOLDS: LiteralString = """
    SELECT r.organization_id, array_agg(r.id) FROM reservations r
    WHERE r.process_id = %s AND r.held_at >= %s AND r.held_at < %s
      AND NOT EXISTS (SELECT FROM resolutions d
          WHERE d.organization_id = r.organization_id AND d.reservation_id = r.id)
      AND NOT EXISTS (SELECT FROM unsettled_marks m
          WHERE m.organization_id = r.organization_id AND m.reservation_id = r.id)
    GROUP BY r.organization_id ORDER BY r.organization_id
"""
