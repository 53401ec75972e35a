"""SQL of the ledger's invariants about period caps, for the slices of `storage/verification`.

Recomputes the counts of each cap from the reservations of its period, in one snapshot. A resolution
that is not folded in yet still counts as held, as in the cap itself. Reads rows of closed months
too, as long as they exist, because a week may begin in a closed month; a cap records how much of
its count belongs to dropped rows.
"""

from typing import LiteralString

_RECOMPUTED: LiteralString = """
    WITH capped AS (
        SELECT * FROM period_caps
        WHERE organization_id > %(after)s AND organization_id <= %(end)s
    ), found AS (
        SELECT organization_id, id, project_id, api_key_id, hold,
            cap_spending_day(NULL, held_at) AS day
        FROM reservations
        WHERE organization_id IN (SELECT organization_id FROM capped) AND spending_day IS NULL
          AND held_at >= (SELECT to_timestamp(min(cap_period_first_day(period, number))::bigint
              * 86400) FROM capped)
        UNION ALL
        SELECT organization_id, id, project_id, api_key_id, hold, spending_day FROM reservations
        WHERE organization_id IN (SELECT organization_id FROM capped) AND spending_day IS NOT NULL
    ), counted AS (
        SELECT r.organization_id, r.project_id, coalesce(k.first_key_id, k.id) AS first_key_id,
            r.day,
            sum(r.hold) FILTER (WHERE d.reservation_id IS NULL OR u.kind IS NOT NULL) AS held,
            sum(d.settled + coalesce(o.amount, 0)) FILTER (WHERE u.kind IS NULL) AS settled,
            sum(o.amount) FILTER (WHERE u.kind IS NULL) AS over
        FROM found r
        JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.api_key_id
        LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
        LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
        LEFT JOIN unfolded u ON u.organization_id = r.organization_id
          AND u.reservation_id = r.id AND u.kind = 'resolved'
        GROUP BY 1, 2, 3, 4
    ), compared AS (
        SELECT c.organization_id, c.subject_id, c.scope, c.period, c.number, c.cap, c.cap_excess,
            c.held, c.settled, c.settled_dropped, coalesce(sum(r.held), 0) AS rows_held,
            coalesce(sum(r.settled), 0) AS rows_settled, coalesce(sum(r.over), 0) AS over
        FROM capped c LEFT JOIN counted r ON r.organization_id = c.organization_id
          AND c.subject_id IN (r.organization_id, r.project_id, r.first_key_id)
          AND cap_period_number(c.period, r.day) = c.number
        GROUP BY c.organization_id, c.subject_id, c.period, c.number, c.scope, c.cap, c.cap_excess,
            c.held, c.settled, c.settled_dropped
    )
"""
_SUMS: LiteralString = (
    _RECOMPUTED  # noqa: S608 - the pieces are constants of this file
    + """
    SELECT subject_id::text, format(
        '%%s %%s of the %%s: kept %%s held and %%s settled, recomputed %%s and %%s', period, number,
        scope, held, settled, rows_held, rows_settled + settled_dropped)
    FROM compared
    WHERE (held, settled) IS DISTINCT FROM (rows_held, rows_settled + settled_dropped)
    """
)
_WITHIN: LiteralString = (
    _RECOMPUTED  # noqa: S608 - the pieces are constants of this file
    + """
    SELECT subject_id::text, format('%%s %%s of the %%s: held and settled %%s, cap %%s', period,
        number, scope, held + settled, cap)
    FROM compared WHERE held + settled - over - settled_dropped - cap_excess > cap
    """
)
# No hold of the organization may count for a later day than its account has seen.
_DAYS: LiteralString = """
    SELECT c.subject_id::text, format('%%s %%s is later than the day %%s of the account', c.period,
        c.number, a.spending_day)
    FROM period_caps c JOIN accounts a USING (organization_id)
    WHERE c.organization_id > %(after)s AND c.organization_id <= %(end)s
      AND (a.spending_day IS NULL OR c.number > cap_period_number(c.period, a.spending_day))
"""
PERIOD_CAP_SUMS: dict[str, LiteralString] = {
    "a period's spending is the sum of its rows": _SUMS,
    "held and settled stay within the caps of a period": _WITHIN,
    "an account has seen the periods of its caps": _DAYS,
}
