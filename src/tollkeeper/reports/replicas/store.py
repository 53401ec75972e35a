"""States of replicas as each gateway process sees them, for the console."""

from dataclasses import dataclass
from uuid import UUID

from tollkeeper.database.database import Connection

# One per process; more than a page can show.
_PROCESSES_MAX = 256


@dataclass(frozen=True, slots=True)
class StoredReport:
    host: str
    pid: int
    age_s: float
    report: str


async def write(connection: Connection, process_id: UUID, report: str) -> None:
    """Nothing if the process isn't registered."""
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
    """Ended processes have none: it goes with the row in `processes`."""
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
