"""Daily partitions of activity records and verdicts, created in advance and dropped after the
retention time."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import LiteralString

from psycopg import sql

from tollkeeper.database.database import Connection

# One process at a time creates and drops partitions.
_PARTITIONS_LOCK = 7461_0003
# Dropping one waits for readers, and writers wait for the drop, so it fails after this and is
# retried later.
_LOCK_TIMEOUT_MS = 2000
# At the end of a partition's name.
_DAY = "%Y%m%d"


@dataclass(frozen=True, slots=True)
class DailyTable:
    """A partition per UTC day, and a default one for days without."""

    name: str
    time_column: str

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.name)

    @property
    def time(self) -> sql.Identifier:
        return sql.Identifier(self.time_column)

    @property
    def default_partition(self) -> sql.Identifier:
        return sql.Identifier(f"{self.name}_default")

    def partition(self, day: date) -> sql.Identifier:
        return sql.Identifier(f"{self.name}_{day:{_DAY}}")


ACTIVITY = DailyTable("activity", "started_at")
VERDICTS = DailyTable("policy_verdicts", "judged_at")
DAILY_TABLES = (ACTIVITY, VERDICTS)


async def try_partitions_lock(connection: Connection) -> bool:
    """Until the transaction ends. False if another process has it. Also limits its lock waits."""
    await connection.execute(
        "SELECT set_config('lock_timeout', %s, true)", (f"{_LOCK_TIMEOUT_MS}ms",)
    )
    cursor = await connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (_PARTITIONS_LOCK,))
    row = await cursor.fetchone()
    return row is not None and bool(row[0])


async def find_days(connection: Connection, table: DailyTable = ACTIVITY) -> list[date]:
    cursor = await connection.execute(_FIND_PARTITIONS, {"table": table.name})
    return [
        datetime.strptime(row[0], f"{table.name}_{_DAY}").replace(tzinfo=UTC).date()
        for row in await cursor.fetchall()
    ]


_FIND_PARTITIONS: LiteralString = r"""
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = %(table)s::regclass
      AND c.relname ~ ('^' || %(table)s || '_\d{8}$') ORDER BY c.relname
"""


async def add_day(connection: Connection, day: date, table: DailyTable = ACTIVITY) -> None:
    """Moves that day's rows out of the default partition. Created as a separate table and then
    attached, because that doesn't block writers of other partitions. A lock keeps new rows out of
    the default one meanwhile."""
    cursor = await connection.execute(_FIND_HOME, {"table": table.name})
    [[home]] = await cursor.fetchall()
    names = {
        "home": sql.Identifier(home),
        "table": table.identifier,
        "default": table.default_partition,
        "day": table.partition(day),
        "time": table.time,
        "first": sql.Literal(_midnight(day)),
        "last": sql.Literal(_midnight(day + timedelta(days=1))),
    }
    for statement in _ADD_DAY:
        await connection.execute(sql.SQL(statement).format(**names))


# Its partitions belong there too, even if the session's search path begins elsewhere.
_FIND_HOME: LiteralString = """
    SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = %(table)s::regclass
"""
_ADD_DAY: tuple[LiteralString, ...] = (
    "LOCK TABLE {default} IN ACCESS EXCLUSIVE MODE",
    "CREATE TABLE {home}.{day} (LIKE {table} INCLUDING ALL)",
    """
    WITH moved AS (
        DELETE FROM {default} WHERE {time} >= {first} AND {time} < {last} RETURNING *
    )
    INSERT INTO {day} SELECT * FROM moved
    """,
    "ALTER TABLE {table} ATTACH PARTITION {day} FOR VALUES FROM ({first}) TO ({last})",
)


async def drop_day(connection: Connection, day: date, table: DailyTable = ACTIVITY) -> None:
    await connection.execute(sql.SQL("DROP TABLE {}").format(table.partition(day)))


async def delete_from_default(
    connection: Connection, before: date, table: DailyTable = ACTIVITY
) -> int:
    """Rows older than the day `before`. Returns their number."""
    cursor = await connection.execute(
        sql.SQL("DELETE FROM {} WHERE {} < %s").format(table.default_partition, table.time),
        (_midnight(before),),
    )
    return cursor.rowcount


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
