"""Contains the SQL for the ledger's months: their partitions, their closes (the stored totals of
closed months) and the later steps (proven, exported, dropped)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import LiteralString
from uuid import UUID

from psycopg import errors as pg
from psycopg import sql

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.months import Month, month_of_number
from tollkeeper.storage.cap_counts import note_dropped
from tollkeeper.storage.database import Connection, Contention
from tollkeeper.storage.verification import LINES

# The advisory lock for months. A transaction that changes months takes the lock exclusively. Work
# that reads months, such as verification, shares the lock.
_MONTHS_LOCK = 7461_0004
# The maximum lock wait of a transaction that changes months. Calls use the same tables and have to
# wait for this transaction. So the transaction fails after this time and is retried later.
_LOCK_TIMEOUT_MS = 2000
# Each table references only tables that come later in this order.
_TABLES = ("overages", "resolutions", "reservations")


@dataclass(frozen=True, slots=True)
class Close:
    month: Month
    previous_month: Month | None
    # The number of the month's reservations.
    reservations: int
    # The digest of the close and of all earlier closes (see `close_digest`).
    digest: bytes
    closed_at: datetime


@dataclass(frozen=True, slots=True)
class Step:
    step: str
    done_at: datetime
    # The next three fields are set only for the step `exported`.
    csv_digest: bytes | None
    csv_rows: int | None
    file_name: str | None


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Identifies a reservation that prevents its month from being closed."""

    organization_id: OrganizationId
    id: UUID
    # False if the reservation is an open hold.
    unsettled: bool


@asynccontextmanager
async def preventing_month_changes(connection: Connection) -> AsyncIterator[bool]:
    """Prevents changes to months while the block runs. Several processes may prevent changes at the
    same time. Yields False if a change is in progress. Takes the lock outside a transaction, so
    that no snapshot stays open."""
    cursor = await connection.execute("SELECT pg_try_advisory_lock_shared(%s)", (_MONTHS_LOCK,))
    [[is_locked]] = await cursor.fetchall()
    try:
        yield bool(is_locked)
    finally:
        if is_locked and not connection.closed:
            await connection.execute("SELECT pg_advisory_unlock_shared(%s)", (_MONTHS_LOCK,))


async def try_lock_months(connection: Connection) -> bool:
    """Takes the lock for changing months until the transaction ends. Returns False if another
    process changes months or prevents changes."""
    cursor = await connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (_MONTHS_LOCK,))
    [[is_locked]] = await cursor.fetchall()
    return bool(is_locked)


async def limit_lock_waits(connection: Connection) -> None:
    """Limits how long this transaction waits for locks, because calls have to wait for this
    transaction."""
    await connection.execute(
        "SELECT set_config('lock_timeout', %s, true)", (f"{_LOCK_TIMEOUT_MS}ms",)
    )


async def read_current(connection: Connection, *, seconds_ago: int = 0) -> Month:
    """Returns the UTC month that the server's clock showed `seconds_ago` seconds ago."""
    cursor = await connection.execute(
        """
        SELECT to_char((clock_timestamp() - make_interval(secs => %s)) AT TIME ZONE 'UTC',
                       'YYYYMM')::integer
        """,
        (seconds_ago,),
    )
    [[number]] = await cursor.fetchall()
    return month_of_number(number)


async def read_open_day(connection: Connection) -> int:
    """Returns the first day after the last closed month (counted from 1970-01-01), or 0 if none is."""
    cursor = await connection.execute("SELECT ledger_open_day()")
    [[open_day]] = await cursor.fetchall()
    return int(open_day)


# The partitions of months.


async def find_months(connection: Connection) -> list[Month]:
    cursor = await connection.execute(_FIND_PARTITIONS, prepare=False)
    return [month_of_number(row[0]) for row in await cursor.fetchall()]


_FIND_PARTITIONS: LiteralString = r"""
    SELECT right(c.relname, 6)::integer AS month
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'reservations'::regclass AND c.relname ~ '^reservations_\d{6}$'
    ORDER BY month
"""


async def add_month(connection: Connection, month: Month) -> None:
    """Adds the partitions of a month, and moves existing rows of that month into them."""
    await connection.execute(
        "SELECT ledger_add_month(%s)", (date(month.year, month.month, 1),), prepare=False
    )


async def drop_month(connection: Connection, month: Month) -> None:
    """Drops the month's partitions, and deletes the marks of reservations that were once unsettled.
    Records the dropped amounts in the caps that still count them. Raises `Contention` if other
    transactions lock the tables for too long."""
    await connection.execute(
        "DELETE FROM unsettled_marks WHERE reservation_id >= %s AND reservation_id < %s",
        (month.first_id, month.end_id),
    )
    try:
        # Calls also lock reservations first, then resolutions, then overages, so no deadlock can occur.
        await connection.execute(
            "LOCK TABLE ONLY reservations, ONLY resolutions, ONLY overages IN ACCESS EXCLUSIVE MODE"
        )
        await note_dropped(connection, month)
        await connection.execute(sql.SQL("DROP TABLE {}").format(_partitions(month)))
    except pg.LockNotAvailable as exc:
        raise Contention from exc


def _partitions(month: Month, tables: Sequence[str] = _TABLES) -> sql.Composed:
    return sql.SQL(", ").join(_partition(table, month) for table in tables)


def _partition(table: str, month: Month) -> sql.Identifier:
    return sql.Identifier(f"{table}_{month.number}")


async def find_unfolded(connection: Connection, month: Month) -> list[OrganizationId]:
    """Returns the organizations with resolutions or marks of the month that are not yet folded into
    their accounts."""
    cursor = await connection.execute(
        """
        SELECT DISTINCT organization_id FROM unfolded
        WHERE reservation_id >= %s AND reservation_id < %s ORDER BY organization_id
        """,
        (month.first_id, month.end_id),
        prepare=False,
    )
    return [row[0] for row in await cursor.fetchall()]


# Closes and later steps.


async def seal_month(connection: Connection, month: Month) -> None:
    """Makes the month's partitions immutable, after the transactions that write to them have
    ended. Locks the partitions in the same order as calls."""
    await connection.execute(
        sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(
            _partitions(month, _TABLES[::-1])
        )
    )
    await connection.execute("SELECT ledger_seal_month(%s)", (month.number,), prepare=False)


async def count_unresolved(connection: Connection, month: Month) -> int:
    cursor = await connection.execute("SELECT count(*)" + _UNRESOLVED, _ids(month), prepare=False)
    [[number]] = await cursor.fetchall()
    return int(number)


async def find_unresolved(connection: Connection, month: Month, limit: int) -> list[Unresolved]:
    query = (
        "SELECT r.organization_id, r.id, m.reservation_id IS NOT NULL"
        + _UNRESOLVED
        + "ORDER BY r.id LIMIT %(limit)s"
    )
    cursor = await connection.execute(query, {**_ids(month), "limit": limit}, prepare=False)
    return [Unresolved(*row) for row in await cursor.fetchall()]


_UNRESOLVED: LiteralString = """
    FROM reservations r
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
      AND d.reservation_id >= %(first)s AND d.reservation_id < %(end_id)s
    LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
    WHERE r.id >= %(first)s AND r.id < %(end_id)s AND d.reservation_id IS NULL
"""


def _ids(month: Month) -> dict[str, object]:
    return {"first": month.first_id, "end_id": month.end_id, "month": month.number}


async def write_totals(connection: Connection, month: Month) -> int:
    """Stores the totals of the month and its lines (costs by day, key and line item). Returns the
    number of reservations in the totals."""
    cursor = await connection.execute(_WRITE_TOTALS, _ids(month), prepare=False)
    [[reservations]] = await cursor.fetchall()
    await connection.execute(_WRITE_LINES, _ids(month), prepare=False)
    return int(reservations)


# Computes the totals of a month. The caller appends GROUP BY organization and project.
TOTALS: LiteralString = """
    SELECT r.organization_id, %(month)s::integer AS month, r.project_id,
        count(*) FILTER (WHERE d.kind = 'settled') AS settled_count,
        count(*) FILTER (WHERE d.kind = 'released') AS released_count,
        sum(d.hold) AS hold, sum(d.settled) AS settled, sum(d.released) AS released,
        coalesce(sum(o.amount), 0) AS overage
    FROM reservations r
    JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
      AND d.reservation_id >= %(first)s AND d.reservation_id < %(end_id)s
    LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
      AND o.reservation_id >= %(first)s AND o.reservation_id < %(end_id)s
    WHERE r.id >= %(first)s AND r.id < %(end_id)s
"""
# Computes the lines of a month. The caller appends GROUP BY all columns except month and amount.
CLOSE_LINES: LiteralString = (
    """
    SELECT d.organization_id, %(month)s::integer AS month, d.day, r.project_id, r.api_key_id,
        ledger_line_item(r.model, line.dimension, d.adjusts_day) AS line_item,
        sum(line.amount) AS amount
    FROM resolutions d
    JOIN reservations r ON r.organization_id = d.organization_id AND r.id = d.reservation_id
      AND r.id >= %(first)s AND r.id < %(end_id)s,
    LATERAL
    """
    + LINES
    + """
    WHERE line.amount > 0 AND d.reservation_id >= %(first)s AND d.reservation_id < %(end_id)s
    """
)
_WRITE_TOTALS: LiteralString = (
    "WITH written AS (INSERT INTO ledger_close_totals (organization_id, month, project_id,"
    " settled_count, released_count, hold, settled, released, overage)"
    + TOTALS
    + """
    GROUP BY r.organization_id, r.project_id
    RETURNING settled_count + released_count AS reservations
    ) SELECT coalesce(sum(reservations), 0)::bigint FROM written
    """
)
_WRITE_LINES: LiteralString = (
    "INSERT INTO ledger_close_lines (organization_id, month, day, project_id, api_key_id,"
    " line_item, amount)"
    + CLOSE_LINES
    + "GROUP BY d.organization_id, d.day, r.project_id, r.api_key_id, line_item"
)


async def write_close(
    connection: Connection, month: Month, previous: Month | None, reservations: int, digest: bytes
) -> None:
    """Writes the close. Waits for settlements in flight, and blocks new settlements until the
    transaction ends, so that every settlement sees whether the month of its cost is closed. Raises
    `Contention` if settlements take too long."""
    await limit_lock_waits(connection)
    try:
        await connection.execute("LOCK TABLE cost_rollup IN SHARE MODE")
    except pg.LockNotAvailable as exc:
        raise Contention from exc
    await connection.execute(
        """
        INSERT INTO ledger_closes (month, previous_month, reservations, digest)
        VALUES (%s, %s, %s, %s)
        """,
        (month.number, None if previous is None else previous.number, reservations, digest),
    )


async def stream_close_rows(connection: Connection, month: Month) -> AsyncIterator[str]:
    """Yields all totals and then all lines of a close in a fixed order. Each of these rows is one
    line of text. Uses a server-side cursor, so that memory does not grow with the number of
    rows."""
    for number, query in enumerate((_TOTALS_AS_TEXT, _LINES_AS_TEXT)):
        async with connection.cursor(f"close_rows_{number}") as cursor:
            await cursor.execute(query, (month.number,))
            async for row in cursor:
                yield row[0]


_TOTALS_AS_TEXT: LiteralString = """
    SELECT concat_ws('|', 'total', month, organization_id, project_id,
                     settled_count, released_count, hold, settled, released, overage)
    FROM ledger_close_totals WHERE month = %s
    ORDER BY organization_id, project_id
"""
# A line item contains the name of a model, which may contain any character, so it is encoded in
# hex.
_LINES_AS_TEXT: LiteralString = """
    SELECT concat_ws('|', 'line', month, organization_id, day, project_id, api_key_id, amount,
                     encode(convert_to(line_item, 'UTF8'), 'hex'))
    FROM ledger_close_lines WHERE month = %s
    ORDER BY organization_id, day, project_id, api_key_id, line_item COLLATE "C"
"""


async def find_closes(connection: Connection) -> list[Close]:
    cursor = await connection.execute(
        """
        SELECT month, previous_month, reservations, digest, closed_at FROM ledger_closes
        ORDER BY month
        """,
        prepare=False,
    )
    return [
        Close(
            month_of_number(month),
            None if previous is None else month_of_number(previous),
            reservations,
            digest,
            closed_at,
        )
        for month, previous, reservations, digest, closed_at in await cursor.fetchall()
    ]


async def find_close(connection: Connection, month: Month) -> Close | None:
    return next((close for close in await find_closes(connection) if close.month == month), None)


async def find_steps(connection: Connection) -> dict[tuple[Month, str], Step]:
    cursor = await connection.execute(
        """
        SELECT month, step, done_at, csv_digest, csv_rows, file_name FROM ledger_close_steps
        """,
        prepare=False,
    )
    return {(month_of_number(row[0]), row[1]): Step(*row[1:]) for row in await cursor.fetchall()}


async def write_step(
    connection: Connection,
    month: Month,
    step: str,
    *,
    csv_digest: bytes | None = None,
    csv_rows: int | None = None,
    file_name: str | None = None,
) -> bool:
    """Records a step of the month. Returns False if the step was recorded before."""
    cursor = await connection.execute(
        """
        INSERT INTO ledger_close_steps (month, step, csv_digest, csv_rows, file_name)
        VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
        """,
        (month.number, step, csv_digest, csv_rows, file_name),
    )
    return cursor.rowcount > 0
