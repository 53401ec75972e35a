"""Resolves and marks reservations. Rare statements aren't prepared, so they're planned for the
current table sizes; `planning` is about the others."""

from collections.abc import Sequence
from operator import attrgetter
from uuid import UUID

import msgspec
from psycopg import errors as pg

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.months import FIRST_ID
from tollkeeper.database.database import Connection
from tollkeeper.database.round_trips import BoundStatement, Statement, run_alone
from tollkeeper.money.holds.price_columns import line_items, lines, sums, total, zero_if_missing
from tollkeeper.money.holds.values import Mark, Resolution

_encode = msgspec.json.Encoder().encode

# Writes resolution, overage, what's folded later, and the roll-up of costs. Leaves resolved ones
# alone. Of two concurrent ones, the second fails with UniqueViolation; repeat it. A cost counts on
# the day of admission or, if that month is closed, in the open month, as an adjustment of that day.
_RESOLVE = Statement(
    "tollkeeper_resolve",
    """
    WITH clock AS (
        SELECT now, utc_day(now) AS today, ledger_open_day() AS open_day
        FROM (SELECT clock_timestamp() AS now) AS one
    ), input AS (
        SELECT organization_id, reservation_id AS id, kind, resolved_by,
               coalesce(estimated, false) AS estimated, """
    + zero_if_missing()
    + """
        FROM json_to_recordset(%s::json) AS g
            (organization_id uuid, reservation_id uuid, kind text, resolved_by text,
            """
    + line_items(after=" numeric")
    + """, estimated boolean)
    ), fresh AS (
        SELECT g.*, r.*, """
    + total("g.")
    + """ AS total,
               CASE WHEN admitted < open_day THEN greatest(today, open_day) ELSE admitted END AS day,
               CASE WHEN admitted < open_day THEN admitted END AS adjusts_day, now
        FROM clock, input g, LATERAL (
            SELECT r.hold, project_id, api_key_id, model, overage_max,
                   utc_day(held_at) AS admitted
            -- Reservations first: `ledger_add_month` locks the tables in this order.
            FROM reservations r LEFT JOIN resolutions d
              ON d.organization_id = g.organization_id AND d.reservation_id = g.id
              -- All ids lie between these two, so that PostgreSQL does not open partitions of
              -- other months.
              AND d.reservation_id BETWEEN %s::uuid AND %s::uuid
            WHERE r.organization_id = g.organization_id AND r.id = g.id
              AND r.id BETWEEN %s::uuid AND %s::uuid
              AND d.reservation_id IS NULL
            -- Makes PostgreSQL look up each reservation by its id. Otherwise it may read all
            -- reservations between the two ids, which are many if one of the calls was long.
            OFFSET 0
        ) r
    ), resolved AS (
        INSERT INTO resolutions (organization_id, reservation_id, kind, hold, settled, released,
            """
    + line_items()
    + """, estimated, resolved_by, day,
            adjusts_day, resolved_at)
        SELECT organization_id, id, kind, hold, least(hold, total), hold - least(hold, total),
               """
    + line_items()
    + """, estimated, resolved_by, day, adjusts_day, now
        FROM fresh
        -- In a fixed order, so that two processes that resolve the same reservations do not deadlock.
        ORDER BY organization_id, id
    ), over AS (
        INSERT INTO overages (organization_id, reservation_id, amount)
        SELECT organization_id, id, total - hold FROM fresh WHERE total > hold
    ), to_fold AS (
        INSERT INTO unfolded (organization_id, reservation_id, kind, project_id, api_key_id, day,
                              hold, overage_max, settled, overage)
        SELECT organization_id, id, 'resolved', project_id, api_key_id, admitted, hold, overage_max,
               least(hold, total), greatest(total - hold, 0)
        FROM fresh
    ), rolled AS (
        INSERT INTO cost_rollup (organization_id, day, project_id, api_key_id, line_item,
                                 amount_picousd)
        SELECT organization_id, day, project_id, api_key_id,
               ledger_line_item(model, dimension, adjusts_day), amount
        FROM (SELECT organization_id, day, project_id, api_key_id, model, adjusts_day, """
    + sums()
    + """
            FROM fresh GROUP BY 1, 2, 3, 4, 5, 6
        ) AS s, LATERAL """
    + lines()
    + """
        WHERE amount > 0
        ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT (organization_id, day, project_id, api_key_id, line_item)
        DO UPDATE SET amount_picousd = cost_rollup.amount_picousd + excluded.amount_picousd
    )
    SELECT id FROM fresh
    """,
)


async def resolve(connection: Connection, resolutions: Sequence[Resolution]) -> set[UUID]:
    """Unprepared, in a transaction. Returns the ids that were resolved now."""
    statement = resolve_statement(resolutions)
    while True:
        try:
            async with connection.transaction():
                rows = await run_alone(connection, statement, prepare=False)
        except pg.UniqueViolation:
            # Another transaction has just resolved one. The next attempt skips it.
            continue
        return {row[0] for row in rows}


def resolve_statement(resolutions: Sequence[Resolution]) -> BoundStatement:
    """Its rows are the ids it resolved. Of two in a batch the first counts. Skips what doesn't
    exist."""
    # Reversed, so the first of two replaces the second.
    newest_first = resolutions[::-1]
    by_id = dict(zip(map(_ids, newest_first), newest_first, strict=True))
    lowest, highest = min(by_id, default=_NO_IDS), max(by_id, default=_NO_IDS)
    between = b"%032x" % lowest[0], b"%032x" % highest[0]
    return _RESOLVE.bind_texts(_encode(list(by_id.values())), *between, *between)


# Integers hash and compare faster than UUIDs.
_ids = attrgetter("reservation_id.int", "organization_id.int")
_NO_IDS = (FIRST_ID.int, 0)


async def find_missing(
    connection: Connection, reservations: Sequence[tuple[OrganizationId, UUID]]
) -> set[UUID]:
    """In a closed month they count as existing, even dropped ones: it closes only once all are
    resolved."""
    cursor = await connection.execute(
        """
        SELECT w.id FROM unnest(%s::uuid[], %s::uuid[]) AS w (organization_id, id)
        WHERE NOT EXISTS (SELECT FROM reservations r
            WHERE r.organization_id = w.organization_id AND r.id = w.id)
          AND NOT EXISTS (SELECT FROM ledger_closes WHERE month = ledger_month(w.id))
        """,
        ([pair[0] for pair in reservations], [pair[1] for pair in reservations]),
        prepare=False,
    )
    return {row[0] for row in await cursor.fetchall()}


async def mark_unsettled(connection: Connection, marks: Sequence[Mark]) -> set[UUID]:
    """Those neither resolved nor marked. Returns their ids. Lock the accounts first: then this sees every
    resolution that was folded, and every later fold sees the marks."""
    by_id = {(mark.organization_id, mark.reservation_id): mark.reason for mark in reversed(marks)}
    cursor = await connection.execute(
        """
        WITH unresolved AS (
            SELECT r.organization_id, r.id, r.project_id, r.api_key_id,
                   utc_day(r.held_at) AS day, r.hold, r.overage_max, w.reason
            FROM unnest(%(organizations)s::uuid[], %(ids)s::uuid[], %(reasons)s::text[])
                AS w (organization_id, id, reason)
            JOIN reservations r USING (organization_id, id)
            -- The list of ids limits the partitions that PostgreSQL opens.
            WHERE r.id = ANY (%(ids)s)
              AND NOT EXISTS (
                  SELECT FROM resolutions d
                  WHERE d.organization_id = r.organization_id AND d.reservation_id = r.id)
        ), marked AS (
            INSERT INTO unsettled_marks (organization_id, reservation_id, reason)
            SELECT organization_id, id, reason FROM unresolved
            ON CONFLICT DO NOTHING
            RETURNING organization_id, reservation_id AS id
        )
        INSERT INTO unfolded (organization_id, reservation_id, kind, project_id, api_key_id, day,
                              hold, overage_max, settled, overage)
        SELECT organization_id, id, 'unsettled', project_id, api_key_id, day, hold, overage_max, 0, 0
        FROM marked JOIN unresolved USING (organization_id, id)
        RETURNING reservation_id
        """,
        {
            "organizations": [organization_id for organization_id, _ in by_id],
            "ids": [reservation_id for _, reservation_id in by_id],
            "reasons": list(by_id.values()),
        },
        prepare=False,
    )
    return {row[0] for row in await cursor.fetchall()}
