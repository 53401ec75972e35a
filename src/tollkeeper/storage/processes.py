"""Contains the SQL for process leases. A lease shows that a process is alive; the process renews
its lease by heartbeats. All times are read from the database server's clock."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString
from uuid import UUID

from tollkeeper.storage.database import Connection

# The advisory lock of the process that looks for dead processes.
_SWEEP_LOCK = 7461_0002

HEARTBEAT: LiteralString = """
    INSERT INTO processes (id) VALUES (%s)
    ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp()
"""

# A process without a heartbeat for this time is declared dead, and its holds (amounts reserved before
# calls) become unsettled. A live process whose heartbeats are late is declared dead too, so the time is
# longer than a pause of the machine or a short database failover. The time is short enough that the
# holds of a dead process do not block credit for long.
LEASE_S = 15.0
# Finds the live processes whose code is older than the revision `floor`. `to_jsonb` makes the query
# work with old versions of the table, which lack the columns that describe a process.
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
    # The kind of a process that is not a gateway, for example a console; None for a gateway.
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
    """Removes the registration of a process that ends and has no open holds."""
    await connection.execute("DELETE FROM processes WHERE id = %s", (process_id,))


@asynccontextmanager
async def sweep_lock(connection: Connection, *, idle_s: float = 10) -> AsyncIterator[bool]:
    """Tries to take the sweep lock until the block ends. Yields False if another process has the
    lock. The server closes the connection after it was idle for `idle_s` seconds; otherwise a
    frozen or disconnected machine would keep the lock for hours."""
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
        # Unlock even if the statement above was cancelled, because it may have taken the lock.
        await connection.execute("SELECT pg_advisory_unlock_all(); RESET idle_session_timeout")


async def find_silent(connection: Connection, *, lease_s: float) -> dict[UUID, datetime]:
    """Returns the processes that have sent no heartbeat for the duration of a lease, with the time
    of their last heartbeat. Also returns processes whose last heartbeat is more than a lease in the
    future, because the server's clock was set back after that heartbeat."""
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
    """Returns the remaining seconds of the lease of each process in `process_ids`. Omits processes
    whose lease has ended or that are not registered."""
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
    """Removes the registration of a dead process. Returns False, and removes nothing, if the
    process has sent a heartbeat after `heartbeat_at` or is not registered. A process that writes a
    hold also sends a heartbeat. So if this function returns True, recovery has seen every hold of the
    process."""
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
