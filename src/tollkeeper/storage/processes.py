"""SQL of leases: a process proves by heartbeats that it lives. Times are those of the server."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString
from uuid import UUID

from tollkeeper.storage.database import Connection

# Only one process at a time looks for dead processes.
_SWEEP_LOCK = 7461_0002

HEARTBEAT: LiteralString = """
    INSERT INTO processes (id) VALUES (%s)
    ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp()
"""

# A process without a heartbeat for this time is declared dead: its holds become unsettled. Long
# enough for a pause of the machine or a short database failover, because a live process that is
# declared dead leaves unsettled calls; short enough that a dead process does not block credit for
# long.
LEASE_S = 15.0
# Works with any version of the table: older ones lack the columns that describe a process.
FIND_LIVE_BELOW: LiteralString = """
    SELECT to_jsonb(p) ->> 'kind', to_jsonb(p) ->> 'host', to_jsonb(p) ->> 'pid',
        to_jsonb(p) ->> 'code_revision',
        greatest(0, extract(epoch FROM clock_timestamp() - p.heartbeat_at))::integer
    FROM processes p
    WHERE abs(extract(epoch FROM clock_timestamp() - p.heartbeat_at)) <= :lease_s
      AND coalesce(to_jsonb(p) ->> 'code_revision', '') < :floor
    ORDER BY 2, 3, p.id
"""


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """Describes a process: its machine and its code."""

    id: UUID
    code_revision: str
    host: str
    pid: int
    # None for a gateway.
    kind: str | None = None


async def register(connection: Connection, process: RunningProcess) -> None:
    """Sends a heartbeat with a description of the process."""
    await connection.execute(
        """
        INSERT INTO processes (id, code_revision, host, pid, kind) VALUES (%s, %s, %s, %s, %s)
        ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp(),
            code_revision = excluded.code_revision, host = excluded.host, pid = excluded.pid,
            kind = excluded.kind
        """,
        (process.id, process.code_revision, process.host, process.pid, process.kind),
    )


async def heartbeat(connection: Connection, process_id: UUID) -> None:
    await connection.execute(HEARTBEAT, (process_id,))


async def sign_off(connection: Connection, process_id: UUID) -> None:
    """Removes the registration of an ending process that holds nothing."""
    await connection.execute("DELETE FROM processes WHERE id = %s", (process_id,))


@asynccontextmanager
async def sweep_lock(connection: Connection, *, idle_s: float = 10) -> AsyncIterator[bool]:
    """Tries to take the lock for the block; yields False if it is taken. The server ends a
    connection that is silent for `idle_s`: otherwise a frozen or disconnected machine would keep
    the lock for hours."""
    try:
        cursor = await connection.execute(
            """
            SELECT pg_try_advisory_lock(%s), set_config('idle_session_timeout', %s, false)
            """,
            (_SWEEP_LOCK, str(int(idle_s * 1000))),
        )
        row = await cursor.fetchone()
        yield row is not None and bool(row[0])
    finally:
        # Also if the statement was cancelled, because the server may have executed it.
        await connection.execute("SELECT pg_advisory_unlock_all(); RESET idle_session_timeout")


async def find_silent(connection: Connection, *, lease_s: float) -> dict[UUID, datetime]:
    """Returns processes without a heartbeat for the length of a lease, with the time of their last
    one. A heartbeat in the future counts as old, because the server's clock was set back since."""
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


async def find_leases(
    connection: Connection, wanted: Collection[UUID], *, lease_s: float
) -> dict[UUID, float]:
    """Returns the remaining seconds of each process's lease. Omits processes without a lease."""
    cursor = await connection.execute(
        """
        SELECT id, extract(epoch FROM heartbeat_at - clock_timestamp())::float8 + %(lease_s)s
        FROM processes
        WHERE id = ANY (%(wanted)s)
          AND heartbeat_at >= clock_timestamp() - make_interval(secs => %(lease_s)s)
        """,
        {"lease_s": lease_s, "wanted": list(wanted)},
    )
    return {row[0]: row[1] for row in await cursor.fetchall()}


async def forget_dead(connection: Connection, process_id: UUID, heartbeat_at: datetime) -> bool:
    """Removes the registration of a dead process; returns False if it has sent a heartbeat since. A
    hold is a heartbeat too, so recovery has seen every hold."""
    cursor = await connection.execute(
        "DELETE FROM processes WHERE id = %s AND heartbeat_at = %s", (process_id, heartbeat_at)
    )
    return cursor.rowcount == 1


async def find_unregistered(connection: Connection, wanted: Collection[UUID]) -> set[UUID]:
    """Returns those processes that are not registered."""
    cursor = await connection.execute(
        """
        SELECT w.id FROM unnest(%s::uuid[]) AS w (id)
        WHERE NOT EXISTS (SELECT FROM processes p WHERE p.id = w.id)
        """,
        (list(wanted),),
    )
    return {row[0] for row in await cursor.fetchall()}
