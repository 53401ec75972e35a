"""SQL of the ledger's invariants: each is one query that returns the rows that break it.

All queries run in one snapshot and compare with rows that are never edited. Resolutions that are
not folded yet count as if they were.
"""

from typing import LiteralString

from tollkeeper.storage.accounts import with_balances
from tollkeeper.storage.database import Connection

# The sums of held, unsettled and settled amounts, computed from immutable rows.
_RESERVED: LiteralString = """
    , reserved AS (
        SELECT r.organization_id, r.project_id, r.month,
            coalesce(sum(r.hold) FILTER (WHERE d.reservation_id IS NULL AND m.reservation_id IS NULL), 0)
                AS held,
            count(*) FILTER (WHERE d.reservation_id IS NULL AND m.reservation_id IS NULL) AS live_holds,
            coalesce(sum(r.hold) FILTER (WHERE d.reservation_id IS NULL AND m.reservation_id IS NOT NULL),
                0) AS unsettled,
            coalesce(sum(d.settled + coalesce(o.amount, 0)), 0) AS settled,
            coalesce(sum(o.amount), 0) AS overage
        FROM reservations r
        LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
        LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
        LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
        GROUP BY r.organization_id, r.project_id, r.month
    )
"""

_BALANCES: LiteralString = with_balances(
    _RESERVED,
    """
    , granted AS (
        SELECT organization_id, sum(amount) AS amount FROM grants GROUP BY organization_id
    ), totals AS (
        SELECT a.organization_id, coalesce(g.amount, 0) AS granted,
            coalesce(sum(r.held), 0) AS held, coalesce(sum(r.unsettled), 0) AS unsettled,
            coalesce(sum(r.settled), 0) AS settled, coalesce(sum(r.overage), 0) AS overage
        FROM accounts a LEFT JOIN granted g USING (organization_id)
        LEFT JOIN reserved r USING (organization_id)
        GROUP BY a.organization_id, g.amount
    ), kept AS (
        SELECT organization_id, granted, available, held, unsettled, settled, overage FROM balances
    ), recomputed AS (
        SELECT organization_id, granted, granted - held - unsettled - settled AS available, held,
               unsettled, settled, overage
        FROM totals
    )
    SELECT k.organization_id::text, format('kept %%s, recomputed %%s', k, r)
    FROM kept k JOIN recomputed r USING (organization_id)
    WHERE (k.granted, k.available, k.held, k.unsettled, k.settled, k.overage)
       IS DISTINCT FROM (r.granted, r.available, r.held, r.unsettled, r.settled, r.overage)
    """,
)

_PROJECTS: LiteralString = with_balances(
    _RESERVED,
    """
    , kept AS (
        SELECT organization_id, project_id, held, unsettled, settled, live_holds
        FROM project_balances
    ), recomputed AS (
        SELECT a.organization_id, a.project_id, coalesce(sum(r.held), 0) AS held,
            coalesce(sum(r.unsettled), 0) AS unsettled, coalesce(sum(r.settled), 0) AS settled,
            coalesce(sum(r.live_holds), 0) AS live_holds
        FROM project_accounts a LEFT JOIN reserved r USING (organization_id, project_id)
        GROUP BY a.organization_id, a.project_id
    )
    SELECT k.project_id::text, format('kept %%s, recomputed %%s', k, r)
    FROM kept k JOIN recomputed r USING (organization_id, project_id)
    WHERE (k.held, k.unsettled, k.settled, k.live_holds)
       IS DISTINCT FROM (r.held, r.unsettled, r.settled, r.live_holds)
    """,
)

# Monthly caps rely on these sums: each balance's month against the holds that were made in it.
_MONTHS: LiteralString = with_balances(
    _RESERVED,
    """
    , kept AS (
        SELECT organization_id::text AS subject, organization_id, NULL::uuid AS project_id, month,
               month_held, month_settled
        FROM balances
        UNION ALL
        SELECT project_id::text, organization_id, project_id, month, month_held, month_settled
        FROM project_balances
    )
    SELECT k.subject, format('in %%s kept %%s held and %%s settled, recomputed %%s and %%s', k.month,
        k.month_held, k.month_settled, coalesce(sum(r.held + r.unsettled), 0), coalesce(sum(r.settled), 0))
    FROM kept k LEFT JOIN reserved r ON r.organization_id = k.organization_id AND r.month = k.month
      AND (k.project_id IS NULL OR r.project_id = k.project_id)
    GROUP BY k.subject, k.month, k.month_held, k.month_settled
    HAVING (k.month_held, k.month_settled)
        IS DISTINCT FROM (coalesce(sum(r.held + r.unsettled), 0), coalesce(sum(r.settled), 0))
    """,
)

_ROLLUP: LiteralString = """
    WITH lines AS (
        SELECT d.organization_id, d.day, r.project_id, r.api_key_id,
               r.model || ', ' || line.dimension AS line_item, sum(line.amount) AS amount
        FROM resolutions d
        JOIN reservations r ON r.organization_id = d.organization_id AND r.id = d.reservation_id,
        LATERAL (VALUES ('prompt', d.prompt), ('completion', d.completion),
            ('input_cache_read', d.input_cache_read), ('input_cache_write', d.input_cache_write),
            ('input_audio', d.input_audio), ('output_audio', d.output_audio),
            ('image', d.image), ('request', d.request), ('web_search', d.web_search),
            ('other', d.other)) AS line (dimension, amount)
        WHERE line.amount > 0 GROUP BY 1, 2, 3, 4, 5
    )
    SELECT coalesce(l.organization_id, c.organization_id)::text,
           format('day %%s, %%s: rolled up %%s, settled %%s', coalesce(l.day, c.day),
                  coalesce(l.line_item, c.line_item), c.amount_picousd, l.amount)
    FROM lines l FULL JOIN cost_rollup c
      ON (c.organization_id, c.day, c.project_id, c.api_key_id, c.line_item)
       = (l.organization_id, l.day, l.project_id, l.api_key_id, l.line_item)
    WHERE l.amount IS DISTINCT FROM c.amount_picousd
"""

_OVERAGES: LiteralString = """
    SELECT d.reservation_id::text, format('cost %%s, hold %%s, overage %%s', d.total, d.hold, o.amount)
    FROM (SELECT organization_id, reservation_id, hold,
                 prompt + completion + input_cache_read + input_cache_write + input_audio
                     + output_audio + image + request + web_search + other AS total
          FROM resolutions) d
    LEFT JOIN overages o USING (organization_id, reservation_id)
    WHERE coalesce(o.amount, 0) <> greatest(d.total - d.hold, 0)
"""

_CAPS: LiteralString = """
    WITH over AS (
        SELECT o.organization_id, r.project_id, sum(o.amount) AS amount FROM overages o
        JOIN reservations r ON r.organization_id = o.organization_id AND r.id = o.reservation_id
        GROUP BY o.organization_id, r.project_id
    ), capped AS (
        SELECT a.organization_id::text AS subject, a.cap, a.cap_excess,
            CASE a.cap_period WHEN 'month' THEN a.month_held + a.month_settled
                              ELSE a.held + a.unsettled + a.settled END AS counted,
            (SELECT sum(amount) FROM over o WHERE o.organization_id = a.organization_id) AS over
        FROM accounts a WHERE a.cap IS NOT NULL
        UNION ALL
        SELECT a.project_id::text, a.cap, a.cap_excess,
            CASE a.cap_period WHEN 'month' THEN a.month_held + a.month_settled
                              ELSE a.held + a.unsettled + a.settled END,
            (SELECT o.amount FROM over o
             WHERE o.organization_id = a.organization_id AND o.project_id = a.project_id)
        FROM project_accounts a WHERE a.cap IS NOT NULL
    )
    SELECT subject, format('held and settled %%s, cap %%s', counted, cap) FROM capped
    WHERE counted - coalesce(over, 0) - cap_excess > cap
"""

# A process is registered for as long as it holds something. One that is registered and silent may
# have ended just now, so that its holds are still to be found by recovery: they have the time that a
# call may take. A time from the future is as far away as one from the past: clocks are set back.
_STALE: LiteralString = """
    SELECT r.id::text, format('held since %%s by a process that is gone', r.held_at)
    FROM reservations r LEFT JOIN processes p ON p.id = r.process_id
    WHERE (p.id IS NULL
           OR (abs(extract(epoch FROM clock_timestamp() - r.held_at)) > %(age_s)s
               AND abs(extract(epoch FROM clock_timestamp() - p.heartbeat_at)) > %(lease_s)s))
      AND NOT EXISTS (SELECT FROM resolutions d
          WHERE d.organization_id = r.organization_id AND d.reservation_id = r.id)
      AND NOT EXISTS (SELECT FROM unsettled_marks m
          WHERE m.organization_id = r.organization_id AND m.reservation_id = r.id)
"""

_TENANTS: LiteralString = """
    SELECT r.id::text, 'the key, the project and the reservation belong to different organizations'
    FROM reservations r
    LEFT JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.api_key_id
      AND k.project_id = r.project_id
    WHERE k.id IS NULL
"""

_DAYS: LiteralString = """
    SELECT reservation_id::text, format('resolved at %%s, counted on day %%s', resolved_at, day)
    FROM resolutions WHERE day <> floor(extract(epoch FROM resolved_at) / 86400)
"""

# Released calls are left out: a crash of the database may lose such a hold, and nothing was charged.
_RESERVATIONS: LiteralString = """
    SELECT a.request_id::text, format('the call was %%s and has no reservation', a.settlement)
    FROM activity a
    WHERE a.settlement IN ('settled', 'unsettled') AND NOT EXISTS (SELECT FROM reservations r
        WHERE r.organization_id = a.organization_id AND r.id = a.request_id)
"""

_FLOATS: LiteralString = """
    SELECT table_name || '.' || column_name, data_type FROM information_schema.columns
    WHERE table_schema = current_schema() AND data_type IN ('real', 'double precision', 'money')
"""

INVARIANTS: dict[str, LiteralString] = {
    "balances are the sum of their rows": _BALANCES,
    "project balances are the sum of their rows": _PROJECTS,
    "a month's spending is the sum of its rows": _MONTHS,
    "the cost report is the sum of settled rows": _ROLLUP,
    "every excess over a hold has its overage row": _OVERAGES,
    "held and settled stay within the caps": _CAPS,
    "no hold outlives its process": _STALE,
    "key, project and reservation belong together": _TENANTS,
    "every settled row lies in its UTC day": _DAYS,
    "every call that may have been charged has its reservation": _RESERVATIONS,
    "no column of money is a float": _FLOATS,
}


async def allow_long_statements(connection: Connection) -> None:
    """Raises the statement timeout for this transaction, because the queries read all rows."""
    await connection.execute("SET LOCAL statement_timeout TO '1h'")


async def find_differences(
    connection: Connection, *, age_s: float, lease_s: float
) -> list[tuple[str, str, str]]:
    """Returns (invariant, id of the row, what is wrong) for every row that breaks an invariant."""
    differences = []
    for name, query in INVARIANTS.items():
        cursor = await connection.execute(query, {"age_s": age_s, "lease_s": lease_s})
        differences += [(name, row[0], row[1]) for row in await cursor.fetchall()]
    return differences
