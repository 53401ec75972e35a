"""Activity: what is known of each inference request, written aside so that no call waits for it."""

import asyncio
import contextlib
import random
from collections import deque
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import structlog

from tollkeeper.domain.access import OrganizationId, ProjectId
from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.errors import InvalidRequest, NotFound, TollkeeperError
from tollkeeper.services.calls.metrics import count_dropped_activity
from tollkeeper.services.clock import Clock
from tollkeeper.storage import activity, activity_partitions
from tollkeeper.storage.activity import ActivityEntry
from tollkeeper.storage.activity_partitions import DAILY_TABLES
from tollkeeper.storage.database import Connection, Database
from tollkeeper.storage.ledger import commit_without_waiting

QUEUED_MAX = 50_000
LIST_LIMIT_MAX = 1000
_BATCH_MAX = 500
# A call may have a thousand policies: their verdicts have bounds of their own.
_QUEUED_VERDICTS_MAX = 200_000
_BATCH_VERDICTS_MAX = 5_000
# What ends within this time goes out together: the ledger has the database to itself meanwhile.
_COLLECT_S = 0.25
_RETRY_PAUSE_S = 0.1
_RETRY_PAUSE_S_MAX = 2.0
# Longer than any pause: who ends while the database comes back still writes what is left.
_DRAIN_TIMEOUT_S = 5.0
# Partitions are made this far ahead, so that a process that cannot make them has time to be noticed.
_DAYS_AHEAD = 3

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
        self._queued_max = queued_max
        self._queued: deque[ActivityRecord] = deque()
        self._queued_verdicts = 0
        self._writing: asyncio.Task[None] | None = None
        # Set while somebody waits for what is queued: nothing more is collected then.
        self._awaited = asyncio.Event()
        self._dropped = 0

    @property
    def queued(self) -> int:
        return len(self._queued)

    @property
    def dropped(self) -> int:
        """Records that were given up since the start: the database was away for too long."""
        return self._dropped

    def record(self, record: ActivityRecord) -> None:
        """Takes the record and returns at once; it is written soon after."""
        self._queued.append(record)
        self._queued_verdicts += len(record.verdicts)
        self._keep_bound()
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def drain(self) -> None:
        """Waits, for a bounded time, until everything that was recorded is written."""
        if self._writing is None:
            return
        self._awaited.set()
        await asyncio.wait([self._writing], timeout=_DRAIN_TIMEOUT_S)
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
            self._writing = None
            _log.error("activity records are lost", count=len(self._queued))
            self._count_dropped(len(self._queued))
            self._queued.clear()
            self._queued_verdicts = 0

    async def activity_show(self, request_id: UUID) -> ActivityEntry:
        """One call's story. Before it is written down, what the ledger knows of the call."""
        async with self._database.reading() as connection:
            found = await activity.find(connection, request_id)
        if found is None:
            raise NotFound(f"There is no request {request_id}.")
        return found

    async def activity_list(
        self,
        *,
        organization_id: OrganizationId | None = None,
        project_id: ProjectId | None = None,
        status: int | None = None,
        limit: int = 20,
    ) -> list[ActivityEntry]:
        """Newest first."""
        if not 1 <= limit <= LIST_LIMIT_MAX:
            raise InvalidRequest(f"A list has 1 to {LIST_LIMIT_MAX} entries.", param="limit")
        async with self._database.reading() as connection:
            return await activity.find_newest(
                connection,
                organization_id=organization_id,
                project_id=project_id,
                status=status,
                limit=limit,
            )

    async def keep_partitions(self) -> None:
        """Makes the days to come and drops those whose time is over. A second process that does
        the same at the same time leaves it to the first."""
        today = datetime.fromtimestamp(self._clock(), UTC).date()
        async with self._database.transaction() as connection:
            if await activity_partitions.try_partitions_lock(connection):
                await _make_days(connection, today)
        # Apart from the above: whoever reads an old day long can keep it from being dropped, but
        # not the next one from being made.
        async with self._database.transaction() as connection:
            if await activity_partitions.try_partitions_lock(connection):
                await _drop_days(connection, today - timedelta(days=self._retention_days))

    async def _write_all(self) -> None:
        pause_s = _RETRY_PAUSE_S
        while self._queued:
            if len(self._queued) < _BATCH_MAX:
                await self._collect()
            batch = self._next_batch()
            try:
                await self._write(batch)
            except TollkeeperError as exc:
                self._put_back(batch)
                _log.warning("activity waits for the database", reason=exc.message)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                pause_s = min(pause_s * 2, _RETRY_PAUSE_S_MAX)
            except asyncio.CancelledError:
                self._put_back(batch)
                raise
            except Exception:  # noqa: BLE001 - the owner of this task
                # This task owns what it was given: a batch that cannot be written must not keep
                # all later ones from being written.
                _log.exception("activity records are given up", count=len(batch))
                self._count_dropped(len(batch))
            else:
                pause_s = _RETRY_PAUSE_S
        self._awaited.clear()
        self._writing = None

    async def _collect(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COLLECT_S):
                await self._awaited.wait()

    async def _write(self, batch: list[ActivityRecord]) -> None:
        async with self._database.transaction() as connection:
            await commit_without_waiting(connection)
            await activity.insert(connection, batch)

    def _next_batch(self) -> list[ActivityRecord]:
        """At least one record, and no more than one statement takes easily."""
        batch: list[ActivityRecord] = []
        verdicts = 0
        while self._queued and len(batch) < _BATCH_MAX and verdicts < _BATCH_VERDICTS_MAX:
            batch.append(self._oldest())
            verdicts += len(batch[-1].verdicts)
        return batch

    def _put_back(self, batch: list[ActivityRecord]) -> None:
        self._queued.extendleft(reversed(batch))
        self._queued_verdicts += sum(len(record.verdicts) for record in batch)
        self._keep_bound()

    def _keep_bound(self) -> None:
        """The oldest go first: the newest are what somebody will look for."""
        while len(self._queued) > self._queued_max or self._queued_verdicts > _QUEUED_VERDICTS_MAX:
            self._oldest()
            self._count_dropped(1)

    def _count_dropped(self, records: int) -> None:
        self._dropped += records
        count_dropped_activity(records)

    def _oldest(self) -> ActivityRecord:
        record = self._queued.popleft()
        self._queued_verdicts -= len(record.verdicts)
        return record


async def _make_days(connection: Connection, today: date) -> None:
    for table in DAILY_TABLES:
        made = await activity_partitions.find_days(connection, table)
        for ahead in range(_DAYS_AHEAD + 1):
            day = today + timedelta(days=ahead)
            if day not in made:
                await activity_partitions.add_day(connection, day, table)


async def _drop_days(connection: Connection, oldest: date) -> None:
    for table in DAILY_TABLES:
        for day in await activity_partitions.find_days(connection, table):
            if day < oldest:
                await activity_partitions.drop_day(connection, day, table)
                _log.info("a day is over", table=table.name, day=str(day))
        await activity_partitions.forget_strays(connection, oldest, table)
