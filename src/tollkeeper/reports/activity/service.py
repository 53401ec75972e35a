"""Queues activity records and writes them in batches, so no call waits for the database. Repeated
rejections of a key for the same reason share a record."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from operator import attrgetter
from uuid import UUID

import structlog

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.activity import ActivityRecord
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.core.runtime.batches import Backoff, Batches, Limit
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.core.runtime.tallies import write_tallies
from tollkeeper.core.views import ActivityEntry
from tollkeeper.database.database import Connection, Database
from tollkeeper.database.server_time import read_time
from tollkeeper.database.watched_connection import allow_long_statements
from tollkeeper.money.months.service import dropped_message, find_dropped
from tollkeeper.reports import rollups
from tollkeeper.reports.activity import partitions as activity_partitions
from tollkeeper.reports.activity import store as activity
from tollkeeper.reports.activity.partitions import DAILY_TABLES
from tollkeeper.reports.activity.repeated_refusals import (
    RECORDED_OF_ORGANIZATION_MAX,
    RepeatedRefusals,
    is_refusal,
)
from tollkeeper.reports.call_metrics import count_dropped_activity
from tollkeeper.reports.traffic.rule import LATENCY_HOURS_KEPT_S

QUEUED_MAX = 50_000
LIST_LIMIT_MAX = 1000
_BATCH_MAX = 500
# A record has its call's verdicts, possibly a thousand, so those have their own limits.
_QUEUED_VERDICTS_MAX = 200_000
_BATCH_VERDICTS_MAX = 5_000
# Fewer writes leave more of the database's capacity to the ledger.
_COLLECT_S = 0.25
_RETRY_PAUSE_S = 0.1
_RETRY_PAUSE_S_MAX = 2.0
# Longer than the longest retry pause, so a stopping process retries once after a short outage.
_DRAIN_TIMEOUT_S = 5.0
# Partitions created in advance, so operators have time to notice a failure.
_DAYS_AHEAD = 3

_REPEATED_REFUSALS = (
    f"Only the first {RECORDED_OF_ORGANIZATION_MAX} refused requests of an organization within a minute "
    "have their own records. Of the others, the first and the last of each kind have a record."
)

_status = attrgetter("status")
# Hashes faster than a UUID.
_organization = attrgetter("organization_id.int")
_log = structlog.get_logger("tollkeeper.activity")


class Activity:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        retention_days: int,
        queued_max: int = QUEUED_MAX,
    ) -> None:
        self._database = database
        self._clock = clock
        self._retention_days = retention_days
        self._dropped = 0
        self._refusals = RepeatedRefusals()
        self._batches: Batches[ActivityRecord] = Batches(
            self._write,
            name="activity",
            collect_s=_COLLECT_S,
            batch=Limit(_BATCH_MAX, _BATCH_VERDICTS_MAX),
            queue=Limit(queued_max, _QUEUED_VERDICTS_MAX),
            weigh=_number_of_verdicts,
            owner=_organization,
            give_up=self._count_dropped,
            backoff=Backoff(_RETRY_PAUSE_S, _RETRY_PAUSE_S_MAX),
        )

    @property
    def queued(self) -> int:
        return self._batches.queued

    @property
    def dropped(self) -> int:
        """By this process: the database was unavailable for too long or refused the records."""
        return self._dropped

    def record(self, *records: ActivityRecord) -> None:
        """Returns at once. A repeated rejection is only counted until `write_refusals`."""
        repeats = self._refusals.repeats
        if max(map(_status, records), default=0) >= 400:
            records = tuple(
                record for record in records if not (is_refusal(record) and repeats(record))
            )
        self._batches.add(*records)
        if self._refusals.is_full:
            self.write_refusals()

    def write_refusals(self) -> None:
        self._batches.add(*self._refusals.take())

    async def drain(self) -> None:
        """Takes at most `_DRAIN_TIMEOUT_S`."""
        before = self._dropped
        write_tallies()  # The recorder passes its buffered records on.
        self.write_refusals()
        if not await self._batches.drain(_DRAIN_TIMEOUT_S):
            _log.error("activity records are lost", count=self._dropped - before)

    async def activity_show(self, request_id: UUID) -> ActivityEntry:
        """Until the record is written, returns what the ledger knows about the call."""
        async with self._database.autocommit() as connection:
            entry = await activity.find(connection, request_id)
            dropped = await find_dropped(connection, request_id)
        if entry is None and dropped is not None:
            raise NotFound(f"There is no request {request_id}. {dropped_message(dropped)}")
        if entry is None:
            raise NotFound(f"There is no request {request_id}. {_REPEATED_REFUSALS}")
        if dropped is not None and entry.settlement == "unsettled":
            # Its ledger rows were dropped with their month, and only those of resolved calls are.
            return replace(entry, settlement="dropped", unsettled_reason=dropped_message(dropped))
        return entry

    async def activity_list(
        self,
        *,
        organization_id: OrganizationId | None = None,
        project_id: ProjectId | None = None,
        status: int | None = None,
        limit: int = 20,
    ) -> list[ActivityEntry]:
        if not 1 <= limit <= LIST_LIMIT_MAX:
            raise InvalidRequest(f"A list has 1 to {LIST_LIMIT_MAX} entries.", param="limit")
        async with self._database.autocommit() as connection:
            return await activity.find_newest(
                connection,
                organization_id=organization_id,
                project_id=project_id,
                status=status,
                limit=limit,
            )

    async def keep_partitions(self) -> None:
        """Also drops expired partitions and roll-ups, and sums old latencies by day. Data is only
        old if this process's clock and the database's agree. Does nothing while another process is
        at it."""
        async with self._database.transaction() as connection:
            now = min(self._clock(), int((await read_time(connection)).timestamp()))
            if await activity_partitions.try_partitions_lock(connection):
                await _create_days(connection, _day_of(self._clock()))
        oldest = _day_of(now) - timedelta(days=self._retention_days)
        # On its own: a long query on an old partition can delay the drop, but mustn't delay new
        # partitions.
        async with self._database.transaction() as connection:
            if await activity_partitions.try_partitions_lock(connection):
                await _drop_days(connection, oldest)
        # On its own: a day of roll-ups can have millions of rows, and no record can be written
        # until a transaction that drops a partition ends.
        async with self._database.transaction() as connection:
            if await activity_partitions.try_partitions_lock(connection):
                await allow_long_statements(connection, minutes=5)
                midnight = datetime(oldest.year, oldest.month, oldest.day, tzinfo=UTC)
                await rollups.delete_before(connection, int(midnight.timestamp()))
                await rollups.sum_latencies_by_day(connection, now - LATENCY_HOURS_KEPT_S)

    async def _write(self, batch: list[ActivityRecord]) -> None:
        async with self._database.round_trips() as trips:
            await activity.insert(trips, batch)

    def _count_dropped(self, records: Sequence[ActivityRecord]) -> None:
        self._dropped += len(records)
        count_dropped_activity(len(records))


def _day_of(unix_s: int) -> date:
    return datetime.fromtimestamp(unix_s, UTC).date()


def _number_of_verdicts(record: ActivityRecord) -> int:
    return len(record.verdicts)


async def _create_days(connection: Connection, today: date) -> None:
    for table in DAILY_TABLES:
        existing = await activity_partitions.find_days(connection, table)
        for ahead in range(_DAYS_AHEAD + 1):
            day = today + timedelta(days=ahead)
            if day not in existing:
                await activity_partitions.add_day(connection, day, table)


async def _drop_days(connection: Connection, oldest: date) -> None:
    for table in DAILY_TABLES:
        for day in await activity_partitions.find_days(connection, table):
            if day < oldest:
                await activity_partitions.drop_day(connection, day, table)
                _log.info("an old partition is dropped", table=table.name, day=str(day))
        await activity_partitions.delete_from_default(connection, oldest, table)
