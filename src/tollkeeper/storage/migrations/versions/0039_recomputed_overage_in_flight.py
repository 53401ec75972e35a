"""Recompute the overage in flight of all accounts, which earlier code did not keep exact.

The amount of an account is the sum over its calls in flight, plus the amounts in `unfolded` that the next
admission subtracts. Open reservations are searched only for organizations with calls in flight. Nearly all
of them are of the last two days, because no call lasts longer than a day. Older ones, of a gateway that was
killed and stayed off, are searched only for organizations that have more calls in flight.
"""

from alembic import op

revision = "0039"
down_revision = "0038"
compatible_from = "0038"

# The lock makes admissions wait, which read an account and then write all its amounts.
_SQL = """
LOCK TABLE accounts IN EXCLUSIVE MODE;

WITH ended AS (
    SELECT u.organization_id, count(*) AS calls, sum(u.overage_max) AS overage_max
    FROM unfolded u LEFT JOIN unsettled_marks m
      ON m.organization_id = u.organization_id AND m.reservation_id = u.reservation_id
    WHERE u.kind = 'unsettled' OR m.reservation_id IS NULL
    GROUP BY u.organization_id
), active AS (
    SELECT p.organization_id, sum(p.live_holds) - coalesce(e.calls, 0) AS calls
    FROM project_accounts p LEFT JOIN ended e ON e.organization_id = p.organization_id
    GROUP BY p.organization_id, e.calls HAVING sum(p.live_holds) > coalesce(e.calls, 0)
), recent AS (
    SELECT r.organization_id, count(*) AS calls, sum(r.overage_max) AS overage_max
    FROM active JOIN reservations r ON r.organization_id = active.organization_id
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
    LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
    WHERE r.held_at > now() - interval '2 days'
      AND d.reservation_id IS NULL AND m.reservation_id IS NULL
    GROUP BY r.organization_id
), older AS (
    SELECT active.organization_id, found.overage_max
    FROM active LEFT JOIN recent ON recent.organization_id = active.organization_id
    CROSS JOIN LATERAL (
        SELECT sum(r.overage_max) AS overage_max
        FROM reservations r
        WHERE r.organization_id = active.organization_id
          AND r.held_at <= now() - interval '2 days'
          AND NOT EXISTS (SELECT FROM resolutions d
              WHERE d.organization_id = r.organization_id AND d.reservation_id = r.id)
          AND NOT EXISTS (SELECT FROM unsettled_marks m
              WHERE m.organization_id = r.organization_id AND m.reservation_id = r.id)
    ) found
    WHERE active.calls > coalesce(recent.calls, 0)
), exact AS (
    SELECT a.organization_id, coalesce(recent.overage_max, 0) + coalesce(older.overage_max, 0)
        + coalesce(e.overage_max, 0) AS overage_in_flight
    FROM accounts a LEFT JOIN recent ON recent.organization_id = a.organization_id
    LEFT JOIN older ON older.organization_id = a.organization_id
    LEFT JOIN ended e ON e.organization_id = a.organization_id
)
UPDATE accounts a SET overage_in_flight = exact.overage_in_flight
FROM exact
WHERE exact.organization_id = a.organization_id
  AND exact.overage_in_flight <> a.overage_in_flight;
"""


def upgrade() -> None:
    op.execute(_SQL)
