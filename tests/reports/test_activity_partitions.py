"""Tests that daily partitions of activity are created in advance, get their rows from the default
partition, and are dropped when their retention ends."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import pytest
from psycopg import sql

from tests.support.activity_records import record_of, written
from tests.support.books import Books
from tollkeeper.core.activity import ActivityRecord
from tollkeeper.core.errors import NotFound, Unavailable
from tollkeeper.database.database import Connection
from tollkeeper.reports import rollups
from tollkeeper.reports.activity import partitions as activity_partitions
from tollkeeper.reports.activity.service import Activity


def _activity(books: Books, today: date, *, retention_days: int = 30) -> Activity:
    now = int(datetime(today.year, today.month, today.day, 12, tzinfo=UTC).timestamp())
    return Activity(books.services.database, lambda: now, retention_days=retention_days)


def _today() -> date:
    return datetime.now(UTC).date()


async def _days(books: Books) -> list[date]:
    async with books.services.database.autocommit() as connection:
        return await activity_partitions.find_days(connection)


def _on(books: Books, day: date, *, second: int = 0) -> ActivityRecord:
    moment = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=second)
    return record_of(books, started_at_ms=int(moment.timestamp() * 1000))


async def _partition_of(books: Books, record: ActivityRecord) -> str:
    rows = await books.sql(
        "SELECT tableoid::regclass::text FROM activity WHERE request_id = %s", record.request_id
    )
    return str(rows[0][0])


async def test_days_are_made_ahead_once(books: Books) -> None:
    today = date(2040, 2, 27)
    activity = _activity(books, today)
    await activity.keep_partitions()
    made = [today + timedelta(days=ahead) for ahead in range(4)]
    assert [day for day in await _days(books) if day >= today][:4] == made
    await activity.keep_partitions()
    record = _on(books, date(2040, 2, 29))
    await written(activity, record)
    assert await _partition_of(books, record) == "activity_20400229"


async def test_what_came_before_its_day_was_made_moves_there(books: Books) -> None:
    today = date(2041, 5, 1)
    activity = _activity(books, today)
    early = [
        _on(books, today),
        _on(books, today, second=86399),
        _on(books, today + timedelta(days=1)),
    ]
    other = _on(books, date(2041, 6, 1))
    await written(activity, *early, other)
    assert {await _partition_of(books, record) for record in (*early, other)} == {
        "activity_default"
    }
    await activity.keep_partitions()
    assert [await _partition_of(books, record) for record in (*early, other)] == [
        "activity_20410501",
        "activity_20410501",
        "activity_20410502",
        "activity_default",
    ]
    for record in (*early, other):
        assert (await activity.activity_show(UUID(record.request_id))).status == 200


async def test_a_day_is_dropped_when_its_time_is_over(books: Books) -> None:
    first = _today() - timedelta(days=4)
    young = _activity(books, first, retention_days=2)
    await young.keep_partitions()
    records = [_on(books, first + timedelta(days=ahead)) for ahead in range(4)]
    stray = _on(books, first - timedelta(days=31))
    await written(young, *records, stray)
    later = _activity(books, first + timedelta(days=4), retention_days=2)
    await later.keep_partitions()
    assert first not in await _days(books)
    assert first + timedelta(days=1) not in await _days(books)
    for gone in (*records[:2], stray):
        with pytest.raises(NotFound):
            await later.activity_show(UUID(gone.request_id))
    for kept in records[2:]:
        assert (await later.activity_show(UUID(kept.request_id))).status == 200


async def test_a_gateway_whose_clock_is_ahead_drops_nothing(books: Books) -> None:
    today = _today()
    await _activity(books, today).keep_partitions()
    record = _on(books, today, second=3600)
    ahead = _activity(books, today + timedelta(days=40))
    await written(ahead, record)
    by_hour = "SELECT * FROM traffic_latency WHERE mod(step, 288) = 12 ORDER BY 1, 2, 3, 4, 5"
    latencies = await books.sql(by_hour)
    await ahead.keep_partitions()
    assert today in await _days(books)
    assert (await ahead.activity_show(UUID(record.request_id))).status == 200
    assert await books.sql("SELECT FROM traffic WHERE organization_id = %s", books.organization)
    assert await books.sql(by_hour) == latencies != []
    # There is a partition for its own records.
    assert today + timedelta(days=40) in await _days(books)


async def test_many_processes_keep_the_days_together(books: Books) -> None:
    activity = _activity(books, date(2043, 1, 1))
    await asyncio.gather(*(activity.keep_partitions() for _ in range(5)))
    assert date(2043, 1, 4) in await _days(books)


async def test_who_reads_an_old_day_does_not_keep_a_new_one_from_being_made(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_partitions, "_LOCK_TIMEOUT_MS", 50)
    old, today = _today() - timedelta(days=150), _today()
    await _activity(books, old).keep_partitions()
    async with books.services.database.transaction() as reader:
        old_day = sql.Identifier(f"activity_{old:%Y%m%d}")
        await reader.execute(sql.SQL("SELECT count(*) FROM {}").format(old_day))
        with pytest.raises(Unavailable):
            await _activity(books, today).keep_partitions()
        days = await _days(books)
        assert old in days
        assert today in days
    await _activity(books, today).keep_partitions()
    assert old not in await _days(books)


async def test_records_are_written_while_old_roll_ups_are_deleted(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of roll-ups can have millions of rows."""
    first = _today() - timedelta(days=40)
    await _activity(books, first).keep_partitions()
    later = _activity(books, first + timedelta(days=40))
    delete_before, records = rollups.delete_before, [_on(books, first + timedelta(days=40))]

    async def slow(connection: Connection, unix_s: int) -> None:
        [[minutes]] = await (await connection.execute("SHOW statement_timeout")).fetchall()
        assert minutes.endswith("min"), "the deletion would be cancelled"
        async with asyncio.timeout(5):
            await written(later, *records)
        await delete_before(connection, unix_s)

    monkeypatch.setattr(rollups, "delete_before", slow)
    await later.keep_partitions()
    assert first not in await _days(books)
