"""Counts caps from the reservations: for new caps, before months are dropped, after a clock was set
back, and for verification. What isn't folded counts as held, as in the counters. Closed months'
rows count while they exist, as a week may begin there; a counter keeps how much of its settled
amount is from dropped rows."""

from typing import LiteralString
from uuid import UUID

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.months import FIRST_ID, LAST_ID, Month
from tollkeeper.database.database import Connection
from tollkeeper.database.watched_connection import allow_long_statements
from tollkeeper.money.caps.rule import CapPeriod

_ALL_IDS = {"first_id": FIRST_ID, "last_id": LAST_ID}


def _with_sums(caps: LiteralString, query: LiteralString) -> LiteralString:
    """`capped`: the caps `c` that meet the condition, with the present period's number. `sums`:
    their reservations in this period, later ones and all with counters. The conditions on ids make
    PostgreSQL open only those partitions."""
    return (
        """
    WITH capped AS (
        SELECT c.*, now.number AS now, cap_period_first_day(c.period, least(now.number, (
            SELECT min(t.number) FROM cap_counters t
            WHERE t.organization_id = c.organization_id AND t.subject_id = c.subject_id
              AND t.period = c.period))) AS first_day
        FROM caps c CROSS JOIN LATERAL (
            SELECT cap_period_number(c.period, utc_day(clock_timestamp())) AS number
        ) now WHERE
    """
        + caps
        + """
    ), counted AS (
        SELECT r.organization_id, r.project_id, r.api_key_id, utc_day(r.held_at) AS day,
            coalesce(sum(r.hold) FILTER (WHERE d.reservation_id IS NULL OR u.kind IS NOT NULL), 0)
                AS held,
            coalesce(sum(d.settled + coalesce(o.amount, 0)) FILTER (WHERE u.kind IS NULL), 0)
                AS settled,
            coalesce(sum(o.amount) FILTER (WHERE u.kind IS NULL), 0) AS over
        FROM reservations r
        LEFT JOIN resolutions d ON d.organization_id = r.organization_id
          AND d.reservation_id = r.id
          AND d.reservation_id BETWEEN %(first_id)s AND %(last_id)s
        LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
          AND o.reservation_id BETWEEN %(first_id)s AND %(last_id)s
        LEFT JOIN unfolded u ON u.organization_id = r.organization_id
          AND u.reservation_id = r.id AND u.kind = 'resolved'
        WHERE r.id BETWEEN %(first_id)s AND %(last_id)s
          AND r.organization_id IN (SELECT organization_id FROM capped)
          AND r.held_at >= (
              SELECT to_timestamp(min(first_day)::bigint * 86400) FROM capped)
        GROUP BY 1, 2, 3, 4
    ), sums AS (
        SELECT c.organization_id, c.subject_id, c.period,
            cap_period_number(c.period, r.day) AS number, sum(r.held) AS held,
            sum(r.settled) AS settled, sum(r.over) AS over
        FROM capped c JOIN counted r ON r.organization_id = c.organization_id
        JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.api_key_id
        WHERE c.subject_id IN (r.organization_id, r.project_id, coalesce(k.first_key_id, k.id))
          AND r.day >= c.first_day
        GROUP BY 1, 2, 3, 4
    )
    """
        + query
    )


async def recount(
    connection: Connection,
    organization_id: OrganizationId,
    subject_id: UUID | None = None,
    period: CapPeriod | None = None,
) -> None:
    """Creates the counters that a cap, or all of the organization's, lack. The caller has locked
    the account."""
    # The organization's calls wait for the lock meanwhile. A minute suffices for millions of
    # reservations.
    await allow_long_statements(connection, minutes=1)
    cap = {"organization": organization_id, "subject": subject_id, "period": period}
    await connection.execute(_RECOUNT, {**cap, **_ALL_IDS}, prepare=False)


# Also counts dropped months, of which only totals are left.
_RECOUNT: LiteralString = _with_sums(
    """
        c.organization_id = %(organization)s
        AND c.subject_id = coalesce(%(subject)s::uuid, c.subject_id)
        AND c.period = coalesce(%(period)s::text, c.period)
    """,
    """
    , dropped AS (
        SELECT c.organization_id, c.subject_id, c.period, 0 AS number, sum(l.amount) AS dropped
        FROM capped c
        JOIN ledger_close_lines l ON l.organization_id = c.organization_id
        JOIN ledger_close_steps s ON s.month = l.month AND s.step = 'dropped'
        JOIN project_keys k ON k.organization_id = l.organization_id AND k.id = l.api_key_id
        WHERE c.period = 'total'
          AND c.subject_id IN (l.organization_id, l.project_id, coalesce(k.first_key_id, k.id))
        GROUP BY 1, 2, 3
    )
    INSERT INTO cap_counters (organization_id, subject_id, period, number, held, settled, dropped,
        excess)
    SELECT organization_id, subject_id, period, number, coalesce(s.held, 0),
        coalesce(s.settled, 0) + coalesce(d.dropped, 0), coalesce(d.dropped, 0),
        greatest(0, coalesce(s.held, 0) + coalesce(s.settled, 0) + coalesce(d.dropped, 0) - c.amount)
    FROM sums s FULL JOIN dropped d USING (organization_id, subject_id, period, number)
    JOIN capped c USING (organization_id, subject_id, period)
    ON CONFLICT DO NOTHING
    """,
)


async def note_dropped(connection: Connection, month: Month) -> None:
    """Notes how much of them is from a month that's about to be dropped. The caller's lock keeps out new
    reservations."""
    ids = {"first_id": month.first_id, "last_id": UUID(int=month.end_id.int - 1)}
    await connection.execute(_NOTE_DROPPED, ids, prepare=False)


_NOTE_DROPPED: LiteralString = _with_sums(
    "true",
    """
    UPDATE cap_counters t SET dropped = t.dropped + s.settled FROM sums s
    WHERE t.organization_id = s.organization_id AND t.subject_id = s.subject_id
      AND t.period = s.period AND t.number = s.number
    """,
)
# The invariants of caps, for the slices of organizations of `money/verification/store`.
_IN_SLICE: LiteralString = "c.organization_id > %(after)s AND c.organization_id <= %(end)s"
# And the present periods without one, which must have counted nothing. If a later one exists, the
# clock was set back, and the next call counts this one.
_COUNTERS: LiteralString = """
    , counters AS (
        SELECT c.organization_id, c.subject_id, c.scope, c.period, t.number, c.amount, t.held,
            t.settled, t.excess, t.dropped
        FROM capped c JOIN cap_counters t USING (organization_id, subject_id, period)
        UNION ALL
        SELECT c.organization_id, c.subject_id, c.scope, c.period, c.now, c.amount, 0, 0, 0, 0
        FROM capped c WHERE NOT EXISTS (SELECT FROM cap_counters t
            WHERE t.organization_id = c.organization_id AND t.subject_id = c.subject_id
              AND t.period = c.period AND t.number >= c.now)
    )
"""
_SUMS: LiteralString = _with_sums(
    _IN_SLICE,
    _COUNTERS
    + """
    SELECT c.subject_id::text, format(
        '%%s %%s of the %%s: kept %%s held and %%s settled, recomputed %%s and %%s', c.period,
        c.number, c.scope, c.held, c.settled, coalesce(s.held, 0),
        coalesce(s.settled, 0) + c.dropped)
    FROM counters c LEFT JOIN sums s USING (organization_id, subject_id, period, number)
    WHERE (c.held, c.settled)
        IS DISTINCT FROM (coalesce(s.held, 0), coalesce(s.settled, 0) + c.dropped)
    """,
)
_WITHIN_CAPS: LiteralString = _with_sums(
    _IN_SLICE,
    _COUNTERS
    + """
    SELECT c.subject_id::text, format('%%s %%s of the %%s: held and settled %%s, cap %%s', c.period,
        c.number, c.scope, c.held + c.settled, c.amount)
    FROM counters c LEFT JOIN sums s USING (organization_id, subject_id, period, number)
    WHERE c.held + c.settled - coalesce(s.over, 0) - c.dropped - c.excess > c.amount
    """,
)
# Calls of an organization that isn't marked look for no caps.
_MARKED: LiteralString = (
    """
    SELECT c.subject_id::text, format('a cap by %%s, but the organization is not marked', c.period)
    FROM caps c JOIN accounts a USING (organization_id) WHERE NOT a.is_capped AND
    """
    + _IN_SLICE
)
CAP_SUMS: dict[str, LiteralString] = {
    "a cap's counters are the sum of its rows": _SUMS,
    "held and settled stay within the caps": _WITHIN_CAPS,
    "an organization with caps is marked": _MARKED,
}
