"""Reports how each gateway process sees the backends' replicas, for the console."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tollkeeper.core.port import Backend, ReplicaReport
from tollkeeper.database.database import Database
from tollkeeper.reports.replicas import store as replica_reports

PUBLISH_INTERVAL_S = 5
# Of reports in `replica_report_list`.
_AGE_S_MAX = 12 * PUBLISH_INTERVAL_S
_REPORTS = msgspec.json.Decoder(tuple[ReplicaReport, ...])


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Of one gateway process."""

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
        """The newest of each gateway process, if it's not older than `_AGE_S_MAX`."""
        async with self._database.autocommit() as connection:
            stored = await replica_reports.find_fresh(connection, age_s_max=_AGE_S_MAX)
        return [ProcessReport(row.host, row.pid, row.age_s, _decoded(row.report)) for row in stored]


def _decoded(report: str) -> tuple[ReplicaReport, ...]:
    """Empty if another version of the gateway wrote something that can't be decoded."""
    try:
        return _REPORTS.decode(report)
    except msgspec.ValidationError:
        return ()
