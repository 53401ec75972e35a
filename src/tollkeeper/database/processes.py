"""Leases show that processes are alive; heartbeats renew them. All times are by the server's
clock."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString
from uuid import UUID

from tollkeeper.database.database import Connection

# For looking for dead processes.
_SWEEP_LOCK = 7461_0002

HEARTBEAT: LiteralString = """
    INSERT INTO processes (id) VALUES (%s)
    ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp()
"""

# Without a heartbeat this long, a process is dead and its holds become unsettled, even if
# heartbeats are just late: so longer than a machine's pause or a short failover, but short enough
# not to block credit for long.
LEASE_S = 15.0
# `to_jsonb`, because old versions of the table lack the columns that describe a process.
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
    id: UUID
    code_revision: str
    host: str
    pid: int
    # None for a gateway.
    kind: str | None = None


async def register(connection: Connection, process: RunningProcess) -> None:
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
    """For a process that ends and has no open holds."""
    await connection.execute("DELETE FROM processes WHERE id = %s", (process_id,))


@asynccontextmanager
async def sweep_lock(connection: Connection, *, idle_s: float = 10) -> AsyncIterator[bool]:
    """Until the block ends; False if another process has it. The server closes it after `idle_s`
    idle seconds; otherwise a frozen machine would keep it for hours."""
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
        # Even if the statement above was cancelled: it may have taken the lock.
        await connection.execute("SELECT pg_advisory_unlock_all(); RESET idle_session_timeout")


async def find_silent(connection: Connection, *, lease_s: float) -> dict[UUID, datetime]:
    """No heartbeat for a lease, with the last one's time. Also those a lease in the future: the
    clock was set back since."""
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
    connection: Connection, process_ids: Collection[UUID], *, lease_s: float
) -> dict[UUID, float]:
    """Remaining seconds. Ended and unregistered ones are left out."""
    cursor = await connection.execute(
        """
        SELECT id, extract(epoch FROM heartbeat_at - clock_timestamp())::float8 + %(lease_s)s
        FROM processes
        WHERE id = ANY (%(wanted)s)
          AND heartbeat_at >= clock_timestamp() - make_interval(secs => %(lease_s)s)
        """,
        {"lease_s": lease_s, "wanted": list(process_ids)},
    )
    return {row[0]: row[1] for row in await cursor.fetchall()}


async def forget_dead(connection: Connection, process_id: UUID, heartbeat_at: datetime) -> bool:
    """False, and nothing removed, after a newer heartbeat or if it's not registered. Writing a hold
    is a heartbeat too, so True means that recovery has seen every hold of the process."""
    cursor = await connection.execute(
        "DELETE FROM processes WHERE id = %s AND heartbeat_at = %s", (process_id, heartbeat_at)
    )
    return cursor.rowcount == 1


async def find_unregistered(connection: Connection, process_ids: Collection[UUID]) -> set[UUID]:
    cursor = await connection.execute(
        """
        SELECT w.id FROM unnest(%s::uuid[]) AS w (id)
        WHERE NOT EXISTS (SELECT FROM processes p WHERE p.id = w.id)
        """,
        (list(process_ids),),
    )
    return {row[0] for row in await cursor.fetchall()}
