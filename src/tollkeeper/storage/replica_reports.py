"""SQL of the replica reports that processes write for the console."""

from dataclasses import dataclass
from uuid import UUID

from tollkeeper.storage.database import Connection

# More processes than a page can show.
_PROCESSES_MAX = 256


@dataclass(frozen=True, slots=True)
class StoredReport:
    """Holds one process's report, with its age by the server's clock."""

    host: str
    pid: int
    age_s: float
    report: str


async def write(connection: Connection, process_id: UUID, report: str) -> None:
    """Replaces the report of a registered process; does nothing for an unregistered one."""
    await connection.execute(
        """
        INSERT INTO replica_reports (process_id, reported_at, report)
        SELECT id, clock_timestamp(), %s::jsonb FROM processes WHERE id = %s
        ON CONFLICT (process_id)
        DO UPDATE SET reported_at = excluded.reported_at, report = excluded.report
        """,
        (report, process_id),
    )


async def find_fresh(connection: Connection, *, age_s_max: float) -> list[StoredReport]:
    """Returns reports up to this age. A process's report is deleted with its registration."""
    cursor = await connection.execute(
        """
        SELECT coalesce(p.host, ''), coalesce(p.pid, 0),
            greatest(0, extract(epoch FROM clock_timestamp() - r.reported_at))::float8,
            r.report::text
        FROM replica_reports r JOIN processes p ON p.id = r.process_id
        WHERE r.reported_at > clock_timestamp() - make_interval(secs => %s)
        ORDER BY p.host, p.pid, p.id LIMIT %s
        """,
        (age_s_max, _PROCESSES_MAX),
    )
    return [StoredReport(*row) for row in await cursor.fetchall()]
