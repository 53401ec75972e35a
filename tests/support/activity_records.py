"""Creates activity records, and simulates a database that is unavailable."""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.support.books import MODEL, Books
from tollkeeper.core.activity import ActivityRecord, VerdictRecord
from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.request_ids import new_request_id
from tollkeeper.core.usage import Usage
from tollkeeper.database.database import Connection, Database, RoundTrips
from tollkeeper.reports.activity.service import Activity

VERDICT = VerdictRecord(
    policy_id="pol_1",
    version=2,
    direction="request",
    mode="enforcing",
    probability_basis_points=4321,
    threshold_basis_points=5000,
    matched=False,
    duration_ms=12,
    judged_at_ms=1_900_000_000_200,
)


def record_of(books: Books, **fields: Any) -> ActivityRecord:
    values: dict[str, Any] = {
        "request_id": str(new_request_id()),
        "organization_id": books.organization,
        "project_id": books.project,
        "key_id": books.key,
        "operation": "chat_create",
        "model": MODEL,
        "streamed": True,
        "started_at_ms": 1_900_000_000_123,
        "duration_us": 456_789,
        "first_piece_us": 78_999,
        "status": 200,
        "error_code": None,
        "finish": "stop",
        "estimated": False,
        "hold_picousd": None,
        "cost_picousd": None,
        "settlement": "none",
        "backend": "cluster",
        "replica": "http://10.0.0.5:8000/v1",
        "verdicts": (VERDICT,),
    }
    values |= fields
    usage = values.pop("usage", Usage(10, 20, 3, 4))
    counts = {} if usage is None else msgspec.structs.asdict(usage)
    shown = {name: counts[name] for name in ActivityRecord.__struct_fields__ if name in counts}
    return ActivityRecord(**shown | values)


async def rolled_up(books: Books, record: ActivityRecord) -> None:
    """Writes the record and deletes it, so that only its sums stay. If it stayed, `ledger verify` would
    report it as the record of a settled call without a reservation."""
    await written(books.services.activity, record)
    await books.sql("DELETE FROM activity WHERE request_id = %s::uuid", record.request_id)


async def written(activity: Activity, *records: ActivityRecord) -> None:
    for record in records:
        activity.record(record)
    await activity.drain()


class UnsteadyDatabase(Database):
    """Wraps a real database, and raises `Unavailable` while `away` is set."""

    def __init__(self, real: Database) -> None:
        self._real = real
        self.away = False
        self.refused = asyncio.Event()

    @asynccontextmanager
    async def autocommit(self, organization: Hashable | None = None) -> AsyncIterator[Connection]:
        self._require()
        async with self._real.autocommit(organization) as connection:
            yield connection

    @asynccontextmanager
    async def round_trips(self) -> AsyncIterator[RoundTrips]:
        self._require()
        async with self._real.round_trips() as trips:
            yield trips

    def _require(self) -> None:
        if self.away:
            self.refused.set()
            raise Unavailable("The database is unavailable; try again.")
