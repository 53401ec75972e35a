"""SQL of the days that activity is kept in: made ahead of time, dropped when their time is over."""

from datetime import UTC, date, datetime, timedelta
from typing import LiteralString

from psycopg import sql

from tollkeeper.storage.database import Connection

# Only one process at a time keeps the partitions.
_PARTITIONS_LOCK = 7461_0003
# To drop a day waits for whoever reads activity, and writers wait behind it: better another time.
_LOCK_TIMEOUT_MS = 2000
_NAME = "activity_%Y%m%d"


async def try_partitions_lock(connection: Connection) -> bool:
    """Until the transaction ends. Nothing in it waits long for a lock."""
    await connection.execute(
        "SELECT set_config('lock_timeout', %s, true)", (f"{_LOCK_TIMEOUT_MS}ms",)
    )
    cursor = await connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (_PARTITIONS_LOCK,))
    row = await cursor.fetchone()
    return row is not None and bool(row[0])


async def find_days(connection: Connection) -> list[date]:
    """The days that have a partition, oldest first."""
    cursor = await connection.execute(_FIND_PARTITIONS)
    return [
        datetime.strptime(row[0], _NAME).replace(tzinfo=UTC).date()
        for row in await cursor.fetchall()
    ]


_FIND_PARTITIONS: LiteralString = r"""
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'activity'::regclass AND c.relname ~ '^activity_\d{8}$' ORDER BY c.relname
"""


async def add_day(connection: Connection, day: date) -> None:
    """Attached, not made in place, because attaching lets writers go on. What the default
    partition took for want of this day moves over; the lock lets nothing of the day in meanwhile."""
    name = sql.Identifier(f"{day:{_NAME}}")
    first, last = sql.Literal(_midnight(day)), sql.Literal(_midnight(day + timedelta(days=1)))
    await connection.execute("LOCK TABLE activity_default IN ACCESS EXCLUSIVE MODE")
    await connection.execute(sql.SQL("CREATE TABLE {} (LIKE activity INCLUDING ALL)").format(name))
    await connection.execute(
        sql.SQL(
            """
            WITH moved AS (
                DELETE FROM activity_default WHERE started_at >= {} AND started_at < {} RETURNING *
            )
            INSERT INTO {} SELECT * FROM moved
            """
        ).format(first, last, name)
    )
    await connection.execute(
        sql.SQL("ALTER TABLE activity ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
            name, first, last
        )
    )


async def drop_day(connection: Connection, day: date) -> None:
    await connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"{day:{_NAME}}")))


async def forget_strays(connection: Connection, before: date) -> int:
    """What no partition took, when its time is over."""
    cursor = await connection.execute(
        "DELETE FROM activity_default WHERE started_at < %s", (_midnight(before),)
    )
    return cursor.rowcount


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
