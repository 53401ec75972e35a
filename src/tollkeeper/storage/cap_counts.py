"""Contains the SQL that recounts the held and settled amounts of caps from the reservations: for
new caps, for resets, before months are dropped, and to verify the ledger.

A resolution that is not yet folded into (added to) the account counts as held, as it does in the
counters of the account and of the cap. Rows of closed months count as long as they exist, because a
week may begin in a closed month. A cap stores how much of its settled amount belongs to dropped
rows. Counters of past periods are ignored, because the next call sets them to zero.
"""

from typing import LiteralString
from uuid import UUID

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.domain.months import FIRST_ID, LAST_ID, Month
from tollkeeper.storage.database import Connection
from tollkeeper.storage.watched_connection import allow_long_statements

_ALL_IDS = {"first_id": FIRST_ID, "last_id": LAST_ID}
# Sums the holds, costs and overages of reservations `r`. The conditions on ids are needed so that
# PostgreSQL opens only the partitions with these ids.
_AMOUNTS: LiteralString = """
    coalesce(sum(r.hold) FILTER (WHERE d.reservation_id IS NULL OR u.kind IS NOT NULL), 0) AS held,
    coalesce(sum(d.settled + coalesce(o.amount, 0)) FILTER (WHERE u.kind IS NULL), 0) AS settled,
    coalesce(sum(o.amount) FILTER (WHERE u.kind IS NULL), 0) AS over
    FROM reservations r
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
      AND d.reservation_id BETWEEN %(first_id)s AND %(last_id)s
    LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
      AND o.reservation_id BETWEEN %(first_id)s AND %(last_id)s
    LEFT JOIN unfolded u ON u.organization_id = r.organization_id AND u.reservation_id = r.id
      AND u.kind = 'resolved'
    WHERE r.id BETWEEN %(first_id)s AND %(last_id)s
"""


def _with_sums(caps: LiteralString, query: LiteralString) -> LiteralString:
    """Prepends two definitions (CTEs) to a query. `capped` contains the current period caps `c`
    (caps with their own counters) for which the condition `caps` is true. `sums` contains the
    recomputed counters of these caps, except caps without reservations."""
    return (
        """
    WITH capped AS (
        SELECT c.* FROM period_caps c JOIN accounts a ON a.organization_id = c.organization_id
        WHERE c.number >= cap_period_number(c.period,
            greatest(a.spending_day, cap_spending_day(NULL, clock_timestamp()))) AND
    """  # noqa: S608 - built from constants of this file
        + caps
        + """
    ), counted AS (
        SELECT r.organization_id, r.project_id, r.api_key_id,
            cap_spending_day(r.spending_day, r.held_at) AS day,
    """
        + _AMOUNTS
        + """
          AND r.organization_id IN (SELECT organization_id FROM capped)
          AND (r.spending_day IS NOT NULL OR r.held_at >= (
              SELECT to_timestamp(min(cap_period_first_day(period, number))::bigint * 86400)
              FROM capped))
        GROUP BY 1, 2, 3, 4
    ), sums AS (
        SELECT c.organization_id, c.subject_id, c.period, sum(r.held) AS held,
            sum(r.settled) AS settled, sum(r.over) AS over
        FROM capped c JOIN counted r ON r.organization_id = c.organization_id
        JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.api_key_id
        WHERE c.subject_id IN (r.organization_id, r.project_id, coalesce(k.first_key_id, k.id))
          AND cap_period_number(c.period, r.day) = c.number
        GROUP BY 1, 2, 3
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
    """Recounts one cap or, without `subject_id` and `period`, all period caps of the organization.
    The caller has locked the account, and has set the counters to zero, because the counters of
    caps without reservations are not written."""
    # The limit is one minute, because calls of the organization wait for the account's lock until
    # the recount ends. One minute suffices for millions of reservations.
    await allow_long_statements(connection, minutes=1)
    cap = {"organization": organization_id, "subject": subject_id, "period": period}
    await connection.execute(_RECOUNT, {**cap, **_ALL_IDS}, prepare=False)


_RECOUNT: LiteralString = _with_sums(
    """
        c.organization_id = %(organization)s
        AND c.subject_id = coalesce(%(subject)s::uuid, c.subject_id)
        AND c.period = coalesce(%(period)s::text, c.period)
    """,
    """
    UPDATE period_caps c SET held = s.held, settled = s.settled,
        cap_excess = greatest(0, s.held + s.settled - c.cap)
    FROM sums s WHERE c.organization_id = s.organization_id AND c.subject_id = s.subject_id
      AND c.period = s.period
    """,
)


async def recount_month(
    connection: Connection, organization_id: OrganizationId, month: Month
) -> None:
    """Recounts the monthly counters of the organization's account and of its projects' accounts.
    The result may exceed a monthly cap; `cap_excess` then stores the difference."""
    parameters = {"organization": organization_id, "month": month.number, **_ALL_IDS}
    await connection.execute(_RECOUNT_PROJECTS, parameters, prepare=False)
    await connection.execute(_RECOUNT_ACCOUNT, parameters, prepare=False)


_RECOUNT_PROJECTS: LiteralString = (
    "WITH counted AS (SELECT r.project_id,"  # noqa: S608 - built from constants of this file
    + _AMOUNTS
    + """
          AND r.organization_id = %(organization)s AND r.month = %(month)s
        GROUP BY r.project_id
    ), sums AS (
        SELECT p.project_id, coalesce(c.held, 0) AS held, coalesce(c.settled, 0) AS settled
        FROM project_accounts p LEFT JOIN counted c USING (project_id)
        WHERE p.organization_id = %(organization)s
    )
    UPDATE project_accounts p SET month = %(month)s, month_held = s.held,
        month_settled = s.settled, cap_excess = CASE p.cap_period
            WHEN 'month' THEN greatest(0, s.held + s.settled - p.cap) ELSE p.cap_excess END
    FROM sums s WHERE p.organization_id = %(organization)s AND p.project_id = s.project_id
    """
)
_RECOUNT_ACCOUNT: LiteralString = """
    UPDATE accounts a SET month = %(month)s, month_held = s.held, month_settled = s.settled,
        cap_excess = CASE a.cap_period
            WHEN 'month' THEN greatest(0, s.held + s.settled - a.cap) ELSE a.cap_excess END
    FROM (
        SELECT coalesce(sum(month_held), 0) AS held, coalesce(sum(month_settled), 0) AS settled
        FROM project_accounts WHERE organization_id = %(organization)s
    ) s
    WHERE a.organization_id = %(organization)s
"""


async def note_dropped(connection: Connection, month: Month) -> None:
    """Records how much of the settled amounts of current caps belongs to a month that is about to
    be dropped. The caller holds a lock that prevents new reservations."""
    ids = {"first_id": month.first_id, "last_id": UUID(int=month.end_id.int - 1)}
    await connection.execute(_NOTE_DROPPED, ids, prepare=False)


_NOTE_DROPPED: LiteralString = _with_sums(
    "true",
    """
    UPDATE period_caps c SET settled_dropped = c.settled_dropped + s.settled FROM sums s
    WHERE c.organization_id = s.organization_id AND c.subject_id = s.subject_id
      AND c.period = s.period
    """,
)
# The invariants of period caps, for the slices (ranges of organizations) of `storage/verification`.
_IN_SLICE: LiteralString = "c.organization_id > %(after)s AND c.organization_id <= %(end)s"
_SUMS: LiteralString = _with_sums(
    _IN_SLICE,
    """
    SELECT c.subject_id::text, format(
        '%%s %%s of the %%s: kept %%s held and %%s settled, recomputed %%s and %%s', c.period, c.number,
        c.scope, c.held, c.settled, coalesce(s.held, 0), coalesce(s.settled, 0) + c.settled_dropped)
    FROM capped c LEFT JOIN sums s USING (organization_id, subject_id, period)
    WHERE (c.held, c.settled)
        IS DISTINCT FROM (coalesce(s.held, 0), coalesce(s.settled, 0) + c.settled_dropped)
    """,
)
_WITHIN_CAPS: LiteralString = _with_sums(
    _IN_SLICE,
    """
    SELECT c.subject_id::text, format('%%s %%s of the %%s: held and settled %%s, cap %%s', c.period,
        c.number, c.scope, c.held + c.settled, c.cap)
    FROM capped c LEFT JOIN sums s USING (organization_id, subject_id, period)
    WHERE c.held + c.settled - coalesce(s.over, 0) - c.settled_dropped - c.cap_excess > c.cap
    """,
)
# An account with a period cap must have a spending day (the latest day to which its holds count),
# and the period of the cap's counters must not be after that day.
_DAYS: LiteralString = (
    """
    SELECT c.subject_id::text, format('%%s %%s is later than the day %%s of the account', c.period,
        c.number, a.spending_day)
    FROM period_caps c JOIN accounts a USING (organization_id)
    WHERE (a.spending_day IS NULL OR c.number > cap_period_number(c.period, a.spending_day)) AND
    """  # noqa: S608 - built from constants of this file
    + _IN_SLICE
)
PERIOD_CAP_SUMS: dict[str, LiteralString] = {
    "a period's spending is the sum of its rows": _SUMS,
    "held and settled stay within the caps of a period": _WITHIN_CAPS,
    "no cap has a period after its account's spending day": _DAYS,
}
