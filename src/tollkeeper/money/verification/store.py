"""The ledger's invariants: each has a query for the rows that violate it. All but `SCHEMA`'s cover
a slice: organizations above `after`, up to `end`. `SUMS` compare accounts with immutable rows, for
closed months with the stored totals (except for caps). `ROWS` check single rows, in a range of ids,
so in one or more partitions. For balances, resolutions that aren't folded yet count as folded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import LiteralString, TypeAlias
from uuid import UUID

from tollkeeper.core.months import FIRST_ID, LAST_ID, month_of_number
from tollkeeper.database import watched_connection
from tollkeeper.database.database import Connection
from tollkeeper.money.caps.counts import CAP_SUMS
from tollkeeper.money.credit.store import with_balances
from tollkeeper.money.holds.price_columns import lines, total
from tollkeeper.money.payments.store import DUE

Query: TypeAlias = LiteralString
# Rows. Nobody could repair more by hand.
DIFFERENCES_PER_QUERY_MAX = 1000


# For automatic verification.
_VERIFICATION_LOCK = 7461_0005


@dataclass(frozen=True, slots=True)
class Slice:
    # Above `after`, up to and including `end`.
    after: UUID = FIRST_ID
    end: UUID = LAST_ID
    # For single rows: reservation ids, both inclusive.
    first_id: UUID = FIRST_ID
    last_id: UUID = LAST_ID
    # Closed months' ids, excluding `closed_to`: their rows are skipped.
    closed_from: UUID = FIRST_ID
    closed_to: UUID = FIRST_ID


@dataclass(frozen=True, slots=True)
class Ages:
    """Of a hold whose call is still in flight, and of a heartbeat before a process counts as
    dead."""

    age_s: float
    lease_s: float


# Open months' rows plus closed months' totals, which have nothing held or unsettled. MATERIALIZED:
# in a new database without statistics, the planner would compute it again for every account.
_RESERVED: LiteralString = """
    , reserved AS MATERIALIZED (
        SELECT r.organization_id, r.project_id,
            coalesce(sum(r.hold) FILTER (WHERE d.reservation_id IS NULL AND m.reservation_id IS NULL), 0)
                AS held,
            count(*) FILTER (WHERE d.reservation_id IS NULL AND m.reservation_id IS NULL) AS live_holds,
            coalesce(sum(r.overage_max)
                FILTER (WHERE d.reservation_id IS NULL AND m.reservation_id IS NULL), 0)
                AS overage_in_flight,
            coalesce(sum(r.hold) FILTER (WHERE d.reservation_id IS NULL AND m.reservation_id IS NOT NULL),
                0) AS unsettled,
            coalesce(sum(d.settled + coalesce(o.amount, 0)), 0) AS settled,
            coalesce(sum(o.amount), 0) AS overage
        FROM reservations r
        LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
            AND d.organization_id > %(after)s AND d.organization_id <= %(end)s
            AND (d.reservation_id < %(closed_from)s OR d.reservation_id >= %(closed_to)s)
        LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
            AND (o.reservation_id < %(closed_from)s OR o.reservation_id >= %(closed_to)s)
        LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
        WHERE r.organization_id > %(after)s AND r.organization_id <= %(end)s
          AND (r.id < %(closed_from)s OR r.id >= %(closed_to)s)
        GROUP BY r.organization_id, r.project_id
        UNION ALL
        SELECT organization_id, project_id, 0, 0, 0, 0, settled + overage, overage
        FROM ledger_close_totals WHERE organization_id > %(after)s AND organization_id <= %(end)s
    )
"""

_IN_SLICE: LiteralString = "WHERE u.organization_id > %(after)s AND u.organization_id <= %(end)s"

_BALANCES: LiteralString = with_balances(
    _RESERVED,
    """
    , granted AS (
        SELECT organization_id, sum(amount) AS amount,
            - coalesce(sum(amount) FILTER (WHERE kind IN ('refund', 'test_refund')), 0) AS refunded
        FROM grants WHERE organization_id > %(after)s AND organization_id <= %(end)s
        GROUP BY organization_id
    ), totals AS (
        SELECT a.organization_id, coalesce(g.amount, 0) AS granted,
            coalesce(g.refunded, 0) AS refunded,
            coalesce(sum(r.held), 0) AS held, coalesce(sum(r.unsettled), 0) AS unsettled,
            coalesce(sum(r.settled), 0) AS settled, coalesce(sum(r.overage), 0) AS overage,
            coalesce(sum(r.overage_in_flight), 0) AS overage_in_flight
        FROM accounts a LEFT JOIN granted g USING (organization_id)
        LEFT JOIN reserved r USING (organization_id)
        WHERE a.organization_id > %(after)s AND a.organization_id <= %(end)s
        GROUP BY a.organization_id, g.amount, g.refunded
    ), kept AS (
        SELECT organization_id, granted, available, held, unsettled, settled, overage,
               overage_in_flight, refunded
        FROM balances
        WHERE organization_id > %(after)s AND organization_id <= %(end)s
    ), recomputed AS MATERIALIZED (
        SELECT organization_id, granted, granted - held - unsettled - settled AS available, held,
               unsettled, settled, overage, overage_in_flight, refunded
        FROM totals
    )
    SELECT k.organization_id::text, format('kept %%s, recomputed %%s', k, r)
    FROM kept k JOIN recomputed r USING (organization_id)
    WHERE ROW(k.*) IS DISTINCT FROM ROW(r.*)
    """,
    unfolded_where=_IN_SLICE,
)

_PROJECTS: LiteralString = with_balances(
    _RESERVED,
    """
    , kept AS (
        SELECT organization_id, project_id, held, unsettled, settled, live_holds
        FROM project_balances WHERE organization_id > %(after)s AND organization_id <= %(end)s
    ), recomputed AS MATERIALIZED (
        SELECT a.organization_id, a.project_id, coalesce(sum(r.held), 0) AS held,
            coalesce(sum(r.unsettled), 0) AS unsettled, coalesce(sum(r.settled), 0) AS settled,
            coalesce(sum(r.live_holds), 0) AS live_holds
        FROM project_accounts a LEFT JOIN reserved r USING (organization_id, project_id)
        WHERE a.organization_id > %(after)s AND a.organization_id <= %(end)s
        GROUP BY a.organization_id, a.project_id
    )
    SELECT k.project_id::text, format('kept %%s, recomputed %%s', k, r)
    FROM kept k JOIN recomputed r USING (organization_id, project_id)
    WHERE (k.held, k.unsettled, k.settled, k.live_holds)
       IS DISTINCT FROM (r.held, r.unsettled, r.settled, r.live_holds)
    """,
    unfolded_where=_IN_SLICE,
)

# Of a settlement (`d`): a row per price dimension, `dimension` and `amount`.
LINES: LiteralString = lines("d.")
_ROLLUP: LiteralString = (
    """
    WITH settled AS (
        SELECT d.organization_id, d.day, r.project_id, r.api_key_id,
               ledger_line_item(r.model, line.dimension, d.adjusts_day) AS line_item, line.amount
        FROM resolutions d
        JOIN reservations r ON r.organization_id = d.organization_id AND r.id = d.reservation_id
            AND r.organization_id > %(after)s AND r.organization_id <= %(end)s
            AND (r.id < %(closed_from)s OR r.id >= %(closed_to)s),
        LATERAL
    """
    + LINES
    + """
        WHERE line.amount > 0 AND d.organization_id > %(after)s AND d.organization_id <= %(end)s
          AND (d.reservation_id < %(closed_from)s OR d.reservation_id >= %(closed_to)s)
        UNION ALL
        SELECT organization_id, day, project_id, api_key_id, line_item, amount
        FROM ledger_close_lines WHERE organization_id > %(after)s AND organization_id <= %(end)s
    ), lines AS (
        SELECT organization_id, day, project_id, api_key_id, line_item, sum(amount) AS amount
        FROM settled GROUP BY 1, 2, 3, 4, 5
    ), kept AS (
        SELECT * FROM cost_rollup WHERE organization_id > %(after)s AND organization_id <= %(end)s
    )
    SELECT coalesce(l.organization_id, c.organization_id)::text,
           format('day %%s, %%s: rolled up %%s, settled %%s', coalesce(l.day, c.day),
                  coalesce(l.line_item, c.line_item), c.amount_picousd, l.amount)
    FROM lines l FULL JOIN kept c
      ON (c.organization_id, c.day, c.project_id, c.api_key_id, c.line_item)
       = (l.organization_id, l.day, l.project_id, l.api_key_id, l.line_item)
    WHERE l.amount IS DISTINCT FROM c.amount_picousd
    """
)

_OVERAGES: LiteralString = (
    """
    SELECT d.reservation_id::text, format('cost %%s, hold %%s, overage %%s', d.total, d.hold, o.amount)
    FROM (SELECT organization_id, reservation_id, hold,
                 """
    + total()
    + """ AS total
          FROM resolutions
          WHERE organization_id > %(after)s AND organization_id <= %(end)s
            AND reservation_id BETWEEN %(first_id)s AND %(last_id)s
            AND (reservation_id < %(closed_from)s OR reservation_id >= %(closed_to)s)) d
    LEFT JOIN overages o ON o.organization_id = d.organization_id
      AND o.reservation_id = d.reservation_id
      AND o.reservation_id BETWEEN %(first_id)s AND %(last_id)s
    WHERE coalesce(o.amount, 0) <> greatest(d.total - d.hold, 0)
    """
)

# Dead processes' open holds. A process is registered while it has holds. Without a recent heartbeat
# it may have just died, before recovery found them, so they only count if they're older than the
# longest call. `abs`, because a clock may have been set back.
_STALE: LiteralString = """
    SELECT r.id::text, format('held since %%s by a process that is gone', r.held_at)
    FROM reservations r LEFT JOIN processes p ON p.id = r.process_id
    WHERE r.organization_id > %(after)s AND r.organization_id <= %(end)s
      AND r.id BETWEEN %(first_id)s AND %(last_id)s
      AND (r.id < %(closed_from)s OR r.id >= %(closed_to)s)
      AND (p.id IS NULL
           OR (abs(extract(epoch FROM clock_timestamp() - r.held_at)) > %(age_s)s
               AND abs(extract(epoch FROM clock_timestamp() - p.heartbeat_at)) > %(lease_s)s))
      AND NOT EXISTS (SELECT FROM resolutions d
          WHERE d.organization_id = r.organization_id AND d.reservation_id = r.id
            AND d.reservation_id BETWEEN %(first_id)s AND %(last_id)s)
      AND NOT EXISTS (SELECT FROM unsettled_marks m
          WHERE m.organization_id = r.organization_id AND m.reservation_id = r.id)
"""

_TENANTS: LiteralString = """
    SELECT r.id::text, 'the key, the project and the reservation belong to different organizations'
    FROM reservations r
    LEFT JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.api_key_id
      AND k.project_id = r.project_id
    WHERE k.id IS NULL AND r.organization_id > %(after)s AND r.organization_id <= %(end)s
      AND r.id BETWEEN %(first_id)s AND %(last_id)s
      AND (r.id < %(closed_from)s OR r.id >= %(closed_to)s)
"""

# Each is granted once, refunds and disputes withdrawn; each grant's payment is recorded, with the
# same organization and mode (live or test).
_PAYMENTS: LiteralString = (
    "WITH due AS ("
    + DUE
    + """
        WHERE p.organization > %(after)s AND p.organization <= %(end)s AND p.paid IS NOT NULL
        GROUP BY p.id
    ), granted AS (
        SELECT organization_id, payment_id,
            coalesce(sum(amount) FILTER (WHERE kind IN ('payment', 'test_payment')), 0) AS paid,
            coalesce(- sum(amount) FILTER (WHERE kind IN ('refund', 'test_refund')), 0) AS withdrawn,
            bool_and(kind IN ('payment', 'refund')) AS livemode,
            bool_or(kind IN ('payment', 'refund')) AS any_livemode
        FROM grants WHERE payment_id IS NOT NULL
          AND organization_id > %(after)s AND organization_id <= %(end)s
        GROUP BY organization_id, payment_id
    )
    SELECT coalesce(d.id, g.payment_id), format('events say %%s paid and %%s withdrawn, granted %%s '
        'and withdrew %%s', d.paid, d.withdrawn, g.paid, g.withdrawn)
    FROM due d FULL JOIN granted g ON g.organization_id = d.organization AND g.payment_id = d.id
    WHERE (d.paid, d.withdrawn, d.livemode, d.livemode)
        IS DISTINCT FROM (g.paid, g.withdrawn, g.livemode, g.any_livemode)
    """
)

# A cost counts on the day of admission or, if that's in a closed month, in a later month (as an
# adjustment). Older versions' rows count on the day of settlement.
_DAYS: LiteralString = """
    SELECT d.reservation_id::text, format('admitted at %%s, resolved at %%s, counted on day %%s%%s',
        r.held_at, d.resolved_at, d.day, ' as an adjustment of day ' || d.adjusts_day)
    FROM resolutions d
    JOIN reservations r ON r.organization_id = d.organization_id AND r.id = d.reservation_id
      AND r.id BETWEEN %(first_id)s AND %(last_id)s
    WHERE d.organization_id > %(after)s AND d.organization_id <= %(end)s
      AND d.reservation_id BETWEEN %(first_id)s AND %(last_id)s
      AND (d.reservation_id < %(closed_from)s OR d.reservation_id >= %(closed_to)s)
      AND CASE WHEN d.adjusts_day IS NULL
          THEN d.day NOT IN (utc_day(r.held_at), utc_day(d.resolved_at))
          ELSE d.adjusts_day <> utc_day(r.held_at)
            OR cap_period_number('month', d.day) <= cap_period_number('month', d.adjusts_day) END
"""

_MARKS: LiteralString = """
    SELECT m.reservation_id::text, 'a mark without a reservation' FROM unsettled_marks m
    WHERE m.organization_id > %(after)s AND m.organization_id <= %(end)s
      AND m.reservation_id BETWEEN %(first_id)s AND %(last_id)s
      AND (m.reservation_id < %(closed_from)s OR m.reservation_id >= %(closed_to)s)
      AND NOT EXISTS (SELECT FROM reservations r
          WHERE r.organization_id = m.organization_id AND r.id = m.reservation_id)
"""

# Not released calls: a crash may lose their reservation, but nothing was charged.
_RESERVATIONS: LiteralString = """
    SELECT a.request_id::text, format('the call was %%s and has no reservation', a.settlement)
    FROM activity a
    WHERE a.settlement IN ('settled', 'unsettled')
      AND a.organization_id > %(after)s AND a.organization_id <= %(end)s
      AND a.request_id BETWEEN %(first_id)s AND %(last_id)s
      AND (a.request_id < %(closed_from)s OR a.request_id >= %(closed_to)s)
      AND NOT EXISTS (SELECT FROM reservations r
        WHERE r.organization_id = a.organization_id AND r.id = a.request_id
          AND r.id BETWEEN %(first_id)s AND %(last_id)s)
"""

_FLOATS: LiteralString = """
    SELECT table_name || '.' || column_name, data_type FROM information_schema.columns
    WHERE table_schema = current_schema() AND data_type IN ('real', 'double precision', 'money')
"""

# Accounts against rows, which a query needs all in one snapshot per organization.
SUMS: dict[str, Query] = {
    "balances are the sum of their rows": _BALANCES,
    "project balances are the sum of their rows": _PROJECTS,
    "the cost report is the sum of settled rows": _ROLLUP,
    "payments are granted as their events say": _PAYMENTS,
    **CAP_SUMS,
}
# Single rows, so ranges of ids can be checked separately.
ROWS: dict[str, Query] = {
    "every excess over a hold has its overage row": _OVERAGES,
    "no hold outlives its process": _STALE,
    "key, project and reservation belong together": _TENANTS,
    "every settled cost counts on its UTC day": _DAYS,
    "every mark belongs to a reservation": _MARKS,
    "every call that may have been charged has its reservation": _RESERVATIONS,
}
SCHEMA: dict[str, Query] = {"no column of money is a float": _FLOATS}
INVARIANTS: dict[str, Query] = {**SUMS, **ROWS, **SCHEMA}


async def allow_long_statements(connection: Connection) -> None:
    """In this transaction: verification reads many rows."""
    await watched_connection.allow_long_statements(connection, minutes=60)


async def begin_snapshot(connection: Connection) -> None:
    """Must be the transaction's first statement."""
    await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    await allow_long_statements(connection)


async def find_in_slice(
    connection: Connection,
    queries: dict[str, Query],
    part: Slice,
    ages: Ages,
) -> list[tuple[str, str, str]]:
    """(invariant, subject, explanation), the subject being for example a reservation's or project's
    id. In a transaction."""
    # Without statistics, the planner expects few rows, materializes one table and compares all its
    # rows with all of another. Otherwise it looks them up by key.
    await connection.execute("SET LOCAL enable_material TO off")
    parameters = {**asdict(part), **asdict(ages), "limit": DIFFERENCES_PER_QUERY_MAX}
    differences = []
    for name, query in queries.items():
        cursor = await connection.execute(
            f"SELECT * FROM ({query}) AS found LIMIT %(limit)s",
            parameters,
            prepare=False,
        )
        differences += [(name, row[0], row[1]) for row in await cursor.fetchall()]
    return differences


async def find_closed_range(connection: Connection) -> tuple[UUID, UUID]:
    """First reservation id in closed months, and after them. They close in order, without gaps, so
    it's one range, maybe empty."""
    cursor = await connection.execute(
        "SELECT min(month), max(month) FROM ledger_closes", prepare=False
    )
    [[first, last]] = await cursor.fetchall()
    if first is None:
        return FIRST_ID, FIRST_ID
    return month_of_number(first).first_id, month_of_number(last).end_id


async def find_organizations_end(connection: Connection, after: UUID, size: int) -> UUID:
    """The last of `size` above `after`; `LAST_ID` if there are fewer, so the last slice also covers
    rows of organizations without an account."""
    cursor = await connection.execute(
        """
        SELECT organization_id FROM accounts WHERE organization_id > %s
        ORDER BY organization_id OFFSET %s - 1 LIMIT 1
        """,
        (after, size),
        prepare=False,
    )
    row = await cursor.fetchone()
    return LAST_ID if row is None else row[0]


async def count_organizations(connection: Connection) -> int:
    cursor = await connection.execute("SELECT count(*) FROM accounts", prepare=False)
    [[number]] = await cursor.fetchall()
    return int(number)


@dataclass(frozen=True, slots=True)
class LedgerVerification:
    verified_at: int
    differences: int


async def write_verification(connection: Connection, differences: int) -> None:
    await connection.execute(
        """
        INSERT INTO ledger_verification (verified_at, differences) VALUES (clock_timestamp(), %s)
        ON CONFLICT (only_row) DO UPDATE
        SET verified_at = excluded.verified_at, differences = excluded.differences
        """,
        (differences,),
    )


async def verification_is_due(connection: Connection, every_hours: int) -> bool:
    """The last one, or if there's none the oldest organization, is at least `every_hours` old. The
    future counts as old: it's from before the clock was set back."""
    cursor = await connection.execute(
        """
        SELECT FROM (SELECT clock_timestamp() AS now) AS one,
            LATERAL (SELECT now - make_interval(hours => %s)) AS due (since)
        WHERE NOT EXISTS (SELECT FROM ledger_verification WHERE verified_at > since AND verified_at <= now)
          AND EXISTS (SELECT FROM organizations WHERE created_at <= since OR created_at > now)
        """,
        (every_hours,),
    )
    return await cursor.fetchone() is not None


@asynccontextmanager
async def verification_lock(connection: Connection) -> AsyncIterator[bool]:
    """For automatic verification, during the block. False if another process has it."""
    cursor = await connection.execute("SELECT pg_try_advisory_lock(%s)", (_VERIFICATION_LOCK,))
    [[is_locked]] = await cursor.fetchall()
    try:
        yield bool(is_locked)
    finally:
        if is_locked and not connection.closed:
            await connection.execute("SELECT pg_advisory_unlock(%s)", (_VERIFICATION_LOCK,))


async def find_verification(connection: Connection) -> LedgerVerification | None:
    cursor = await connection.execute(
        "SELECT extract(epoch FROM verified_at)::bigint, differences FROM ledger_verification"
    )
    row = await cursor.fetchone()
    return None if row is None else LedgerVerification(*row)
