"""Finds open holds. No table or index lists them, as that would slow down every call. Projects'
accounts count them, so a search knows when it has all."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.database.database import Connection
from tollkeeper.database.server_time import read_time
from tollkeeper.database.watched_connection import allow_long_statements
from tollkeeper.money.credit.store import with_balances

FIRST_ID = UUID(int=0)
LAST_ID = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class OpenHold:
    organization_id: OrganizationId
    project_id: ProjectId
    process_id: UUID
    id: UUID
    held_at: datetime


@asynccontextmanager
async def snapshot(connection: Connection) -> AsyncIterator[datetime]:
    """With the server's time. Statements may take minutes: at a high rate, even one minute of calls
    has many rows."""
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await allow_long_statements(connection, minutes=5)
        yield await read_time(connection)


async def count_by_project(
    connection: Connection,
) -> dict[tuple[OrganizationId, ProjectId], int]:
    """By the accounts. Projects without any are left out."""
    cursor = await connection.execute(_COUNT_BY_PROJECT, prepare=False)
    return {(row[0], row[1]): row[2] for row in await cursor.fetchall()}


_COUNT_BY_PROJECT: LiteralString = with_balances(
    """
    SELECT organization_id, project_id, live_holds::bigint FROM project_balances
    WHERE live_holds > 0
    """
)


async def find_created_between(
    connection: Connection, oldest: datetime, newest: datetime | None
) -> list[OpenHold]:
    """From `oldest`, and before `newest` if given."""
    cursor = await connection.execute(_FIND_CREATED_BETWEEN, (oldest, newest), prepare=False)
    return _holds(await cursor.fetchall())


async def find_still_open(connection: Connection, holds: Collection[OpenHold]) -> list[OpenHold]:
    return await _open_among(connection, [(hold.organization_id, hold.id) for hold in holds])


async def find_page_end(
    connection: Connection, organization_id: OrganizationId, after: UUID, size: int
) -> UUID:
    """The last of `size` ids above `after`; `LAST_ID` if there are fewer."""
    cursor = await connection.execute(_FIND_PAGE_END, (organization_id, after, size), prepare=False)
    row = await cursor.fetchone()
    return LAST_ID if row is None else row[0]


async def find_in_page(
    connection: Connection, organization_id: OrganizationId, after: UUID, end: UUID
) -> list[OpenHold]:
    page = {"organization": organization_id, "after": after, "end": end}
    cursor = await connection.execute(_FIND_IDS_IN_PAGE, page, prepare=False)
    return await _open_among(connection, [(organization_id, row[0]) async for row in cursor])


async def _open_among(
    connection: Connection, pairs: Sequence[tuple[OrganizationId, UUID]]
) -> list[OpenHold]:
    if not pairs:
        return []
    ids = ([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    cursor = await connection.execute(_FIND_OPEN, ids, prepare=False)
    return _holds(await cursor.fetchall())


_COLUMNS: LiteralString = """
    SELECT r.organization_id, r.project_id, r.process_id, r.id, r.held_at
"""
_IS_OPEN: LiteralString = """
      NOT EXISTS (SELECT FROM resolutions d
          WHERE d.organization_id = r.organization_id AND d.reservation_id = r.id)
      AND NOT EXISTS (SELECT FROM unsettled_marks m
          WHERE m.organization_id = r.organization_id AND m.reservation_id = r.id)
"""
_FIND_CREATED_BETWEEN: LiteralString = (
    _COLUMNS
    + """
    FROM reservations r
    WHERE r.held_at >= %s AND r.held_at < coalesce(%s, 'infinity'::timestamptz) AND
    """
    + _IS_OPEN
)
_FIND_OPEN: LiteralString = (
    _COLUMNS
    + """
    FROM unnest(%s::uuid[], %s::uuid[]) AS w (organization_id, id)
    JOIN reservations r USING (organization_id, id)
    WHERE
    """
    + _IS_OPEN
)
_FIND_PAGE_END: LiteralString = """
    SELECT id FROM reservations WHERE organization_id = %s AND id > %s
    ORDER BY id OFFSET %s - 1 LIMIT 1
"""
# Only this page of all three tables, by primary key.
_FIND_IDS_IN_PAGE: LiteralString = """
    SELECT id FROM reservations
    WHERE organization_id = %(organization)s AND id > %(after)s AND id <= %(end)s
    EXCEPT SELECT reservation_id FROM resolutions
    WHERE organization_id = %(organization)s AND reservation_id > %(after)s
      AND reservation_id <= %(end)s
    EXCEPT SELECT reservation_id FROM unsettled_marks
    WHERE organization_id = %(organization)s AND reservation_id > %(after)s
      AND reservation_id <= %(end)s
"""


def _holds(rows: list[tuple[Any, ...]]) -> list[OpenHold]:
    return [OpenHold(*row) for row in rows]
