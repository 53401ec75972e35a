"""Proves a close: its totals against the month's rows, while they exist. In slices: organizations
above `after`, up to `end`."""

from typing import LiteralString

from tollkeeper.core.months import Month
from tollkeeper.database.database import Connection
from tollkeeper.money.months.store import CLOSE_LINES, TOTALS
from tollkeeper.money.verification.store import DIFFERENCES_PER_QUERY_MAX, Slice

_TOTALS: LiteralString = (
    "WITH recomputed AS ("
    + TOTALS
    + """
        AND r.organization_id > %(after)s AND r.organization_id <= %(end)s
        AND d.organization_id > %(after)s AND d.organization_id <= %(end)s
        GROUP BY r.organization_id, r.project_id
    ), kept AS (
        SELECT * FROM ledger_close_totals
        WHERE month = %(month)s AND organization_id > %(after)s AND organization_id <= %(end)s
    )
    SELECT coalesce(k.project_id, r.project_id)::text,
        format('month %%s closed with %%s, its rows add up to %%s', %(month)s::integer, k, r)
    FROM kept k FULL JOIN recomputed r USING (organization_id, project_id)
    WHERE (k.settled_count, k.released_count, k.hold, k.settled, k.released, k.overage)
        IS DISTINCT FROM
          (r.settled_count, r.released_count, r.hold, r.settled, r.released, r.overage)
    """
)
_LINES: LiteralString = (
    "WITH recomputed AS ("
    + CLOSE_LINES
    + """
        AND d.organization_id > %(after)s AND d.organization_id <= %(end)s
        GROUP BY d.organization_id, d.day, r.project_id, r.api_key_id, line_item
    ), kept AS (
        SELECT * FROM ledger_close_lines
        WHERE month = %(month)s AND organization_id > %(after)s AND organization_id <= %(end)s
    )
    SELECT coalesce(k.organization_id, r.organization_id)::text,
        format('month %%s, day %%s, %%s: closed with %%s, its rows add up to %%s',
            %(month)s::integer, coalesce(k.day, r.day), coalesce(k.line_item, r.line_item),
            k.amount, r.amount)
    FROM kept k FULL JOIN recomputed r
      USING (organization_id, day, project_id, api_key_id, line_item)
    WHERE k.amount IS DISTINCT FROM r.amount
    """
)
_UNRESOLVED: LiteralString = """
    SELECT r.id::text, format('month %%s is closed, but the reservation is not resolved', %(month)s::integer)
    FROM reservations r
    WHERE r.id >= %(first)s AND r.id < %(end_id)s
      AND r.organization_id > %(after)s AND r.organization_id <= %(end)s
      AND NOT EXISTS (SELECT FROM resolutions d
          WHERE d.organization_id = r.organization_id AND d.reservation_id = r.id
            AND d.reservation_id >= %(first)s AND d.reservation_id < %(end_id)s)
"""
CLOSE_IS_ITS_ROWS = "the totals of a closed month are the sum of its rows"
_QUERIES = (_TOTALS, _LINES, _UNRESOLVED)


async def find_close_differences(
    connection: Connection, month: Month, part: Slice
) -> list[tuple[str, str, str]]:
    """(invariant, subject, explanation) of each difference, and of each unresolved reservation."""
    parameters = {
        "month": month.number,
        "first": month.first_id,
        "end_id": month.end_id,
        "after": part.after,
        "end": part.end,
        "limit": DIFFERENCES_PER_QUERY_MAX,
    }
    differences = []
    for query in _QUERIES:
        cursor = await connection.execute(
            f"SELECT * FROM ({query}) AS found LIMIT %(limit)s",
            parameters,
            prepare=False,
        )
        rows = await cursor.fetchall()
        differences += [(CLOSE_IS_ITS_ROWS, row[0], row[1]) for row in rows]
    return differences
