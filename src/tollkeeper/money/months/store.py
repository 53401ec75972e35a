"""Ledger months: partitions, closes (stored totals) and the later steps (proven, exported,
dropped)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import LiteralString
from uuid import UUID

from psycopg import errors as pg
from psycopg import sql

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.months import Month, month_of_number
from tollkeeper.database.database import Connection, Contention
from tollkeeper.money.caps.counts import note_dropped
from tollkeeper.money.verification.store import LINES

# Exclusive for changing months; shared for reading them, as in verification.
_MONTHS_LOCK = 7461_0004
# Calls use the same tables and wait for a change of months, so it fails after this and is retried
# later.
_LOCK_TIMEOUT_MS = 2000
# Each only references later ones.
_TABLES = ("overages", "resolutions", "reservations")


@dataclass(frozen=True, slots=True)
class Close:
    month: Month
    previous_month: Month | None
    reservations: int
    # Covers all earlier closes too (see `close_digest`).
    digest: bytes
    closed_at: datetime


@dataclass(frozen=True, slots=True)
class Step:
    step: str
    done_at: datetime
    # From here, only for `exported`.
    csv_digest: bytes | None
    csv_rows: int | None
    file_name: str | None


@dataclass(frozen=True, slots=True)
class Unresolved:
    """It keeps its month from being closed."""

    organization_id: OrganizationId
    id: UUID
    # False for an open hold.
    unsettled: bool


@asynccontextmanager
async def preventing_month_changes(connection: Connection) -> AsyncIterator[bool]:
    """For the block; several processes may do it at once. False if a change is in progress. Takes
    the lock outside a transaction, so no snapshot stays open."""
    cursor = await connection.execute("SELECT pg_try_advisory_lock_shared(%s)", (_MONTHS_LOCK,))
    [[is_locked]] = await cursor.fetchall()
    try:
        yield bool(is_locked)
    finally:
        if is_locked and not connection.closed:
            await connection.execute("SELECT pg_advisory_unlock_shared(%s)", (_MONTHS_LOCK,))


async def try_lock_months(connection: Connection) -> bool:
    """Until the transaction ends. False if another process changes months or prevents that."""
    cursor = await connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (_MONTHS_LOCK,))
    [[is_locked]] = await cursor.fetchall()
    return bool(is_locked)


async def limit_lock_waits(connection: Connection) -> None:
    """Because calls have to wait for this transaction."""
    await connection.execute(
        "SELECT set_config('lock_timeout', %s, true)", (f"{_LOCK_TIMEOUT_MS}ms",)
    )


async def read_current(connection: Connection, *, seconds_ago: int = 0) -> Month:
    """In UTC, by the server's clock `seconds_ago` seconds ago."""
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
    """After the last closed month, since 1970-01-01; 0 if none is."""
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
    """Moves the month's existing rows in too."""
    await connection.execute(
        "SELECT ledger_add_month(%s)", (date(month.year, month.month, 1),), prepare=False
    )


async def drop_month(connection: Connection, month: Month) -> None:
    """Also drops the marks of once unsettled reservations, and notes the amounts in caps that still
    count them. Contention if tables stay locked for too long."""
    await connection.execute(
        "DELETE FROM unsettled_marks WHERE reservation_id >= %s AND reservation_id < %s",
        (month.first_id, month.end_id),
    )
    try:
        # Calls also lock reservations, then resolutions, then overages, so there's no deadlock.
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
    """With resolutions or marks of the month that aren't folded yet."""
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
    """Makes it immutable, once those who write to it have ended. Locks partitions in calls'
    order."""
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
    """And the lines (costs by day, key and line item). Returns the number of reservations."""
    cursor = await connection.execute(_WRITE_TOTALS, _ids(month), prepare=False)
    [[reservations]] = await cursor.fetchall()
    await connection.execute(_WRITE_LINES, _ids(month), prepare=False)
    return int(reservations)


# Append GROUP BY organization and project.
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
# Append GROUP BY all columns except month and amount.
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
    """Waits for settlements in flight and blocks new ones until the transaction ends, so each sees
    whether its cost's month is closed. Contention if they take too long."""
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
    """All totals, then all lines, in a fixed order, a text line each. A server-side cursor, so
    memory doesn't grow."""
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
# A model's name may have any character, so it's in hex.
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
    """False if it was recorded before."""
    cursor = await connection.execute(
        """
        INSERT INTO ledger_close_steps (month, step, csv_digest, csv_rows, file_name)
        VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
        """,
        (month.number, step, csv_digest, csv_rows, file_name),
    )
    return cursor.rowcount > 0
