"""Writes reports about the backend replicas to the database. Every few seconds, each gateway process
reports the state of the replicas as the process sees it. The console shows the reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tollkeeper.backends.port import Backend, ReplicaReport
from tollkeeper.storage import replica_reports
from tollkeeper.storage.database import Database

PUBLISH_INTERVAL_S = 5
# The maximum age of reports in `replica_report_list`.
_AGE_S_MAX = 12 * PUBLISH_INTERVAL_S
_REPORTS = msgspec.json.Decoder(tuple[ReplicaReport, ...])


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Contains the report of one gateway process, and the age of the report in seconds."""

    host: str
    pid: int
    age_s: float
    replicas: tuple[ReplicaReport, ...]


class ReplicaReports:
    def __init__(
        self, database: Database, backends: Mapping[str, Backend], process_id: UUID
    ) -> None:
        self._database = database
        self._backends = backends
        self._process_id = process_id

    async def publish(self) -> None:
        reports = [
            report for backend in self._backends.values() for report in backend.health().reports
        ]
        encoded = msgspec.json.encode(reports).decode()
        async with self._database.autocommit() as connection:
            await replica_reports.write(connection, self._process_id, encoded)

    async def replica_report_list(self) -> list[ProcessReport]:
        """Returns the newest report of each gateway process that uses this database. Omits reports
        older than `_AGE_S_MAX`."""
        async with self._database.autocommit() as connection:
            stored = await replica_reports.find_fresh(connection, age_s_max=_AGE_S_MAX)
        return [ProcessReport(row.host, row.pid, row.age_s, _decoded(row.report)) for row in stored]


def _decoded(report: str) -> tuple[ReplicaReport, ...]:
    """Decodes a report. Returns an empty tuple if the report cannot be decoded, because another
    version of the gateway wrote it."""
    try:
        return _REPORTS.decode(report)
    except msgspec.ValidationError:
        return ()
