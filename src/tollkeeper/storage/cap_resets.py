"""SQL that resets caps after the database's clock ran ahead: moves reservations that count for a
future day back to today, and recounts the accounts.

The caller has locked the account, so no other transaction holds or folds. Settlements continue: the
amounts that they return wait in `unfolded`, and count as held until they are folded in.
"""

from dataclasses import dataclass
from typing import LiteralString
from uuid import UUID

from psycopg import errors as pg

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.domain.errors import StateConflict
from tollkeeper.domain.months import Month, month_of_number
from tollkeeper.storage.database import Connection, Contention
from tollkeeper.storage.ledger_months import limit_lock_waits
from tollkeeper.storage.period_cap_changes import CapOwner


@dataclass(frozen=True, slots=True)
class CountedDates:
    """Holds the database's time, and the latest month and day that an account counts for."""

    now_s: int
    month: int
    # None if the organization has no period caps.
    spending_day: int | None


async def read_dates(
    connection: Connection, organization_id: OrganizationId
) -> CountedDates | None:
    cursor = await connection.execute(
        """
        SELECT extract(epoch FROM clock_timestamp())::bigint, greatest(a.month, (
            SELECT max(p.month) FROM project_accounts p
            WHERE p.organization_id = a.organization_id)), a.spending_day
        FROM accounts a WHERE a.organization_id = %s
        """,
        (organization_id,),
        prepare=False,
    )
    row = await cursor.fetchone()
    return None if row is None else CountedDates(*row)


async def move_reservations(
    connection: Connection, organization_id: OrganizationId, today: int
) -> int:
    """Corrects the spending day of each reservation that counts for a later day or month than
    today: to the day of its hold, or to today if that day is in the future. Returns the number of
    corrected reservations."""
    try:
        cursor = await connection.execute(
            _MOVE, {"organization": organization_id, "today": today}, prepare=False
        )
    except pg.RestrictViolation as exc:
        raise StateConflict(
            "A closed month has calls of this organization that count for a later month, and a "
            "closed month is not changed."
        ) from exc
    return cursor.rowcount


_MOVE: LiteralString = """
    UPDATE reservations r SET month = cap_period_number('month', m.day),
        spending_day = nullif(m.day, cap_spending_day(NULL, r.held_at))
    FROM (
        SELECT id, least(cap_spending_day(NULL, held_at), %(today)s::integer) AS day
        FROM reservations WHERE organization_id = %(organization)s
          AND (month > cap_period_number('month', %(today)s::integer)
               OR cap_spending_day(spending_day, held_at) > %(today)s::integer)
    ) m
    WHERE r.organization_id = %(organization)s AND r.id = m.id
"""


async def find_dropped(
    connection: Connection, organization_id: OrganizationId, first: Month
) -> Month | None:
    """Returns a dropped month with calls of the organization that count for `first` or later."""
    cursor = await connection.execute(
        """
        SELECT t.month FROM ledger_close_totals t
        JOIN ledger_close_steps s ON s.month = t.month AND s.step = 'dropped'
        WHERE t.organization_id = %s AND t.spending_month >= %s LIMIT 1
        """,
        (organization_id, first.number),
        prepare=False,
    )
    row = await cursor.fetchone()
    return None if row is None else month_of_number(row[0])


async def count_month(
    connection: Connection, organization_id: OrganizationId, month: Month
) -> None:
    """Recounts the held and settled amounts of the month, for the organization and its projects. A
    monthly cap may be lower than the result."""
    parameters = {"organization": organization_id, "month": month.number}
    await connection.execute(_COUNT_PROJECTS, parameters, prepare=False)
    await connection.execute(_COUNT_ACCOUNT, parameters, prepare=False)


_COUNT_PROJECTS: LiteralString = """
    WITH counted AS (
        SELECT r.project_id,
            sum(r.hold) FILTER (WHERE d.reservation_id IS NULL OR u.kind IS NOT NULL) AS held,
            sum(d.settled + coalesce(o.amount, 0)) FILTER (WHERE u.kind IS NULL) AS settled
        FROM reservations r
        LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
        LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
        LEFT JOIN unfolded u ON u.organization_id = r.organization_id AND u.reservation_id = r.id
          AND u.kind = 'resolved'
        WHERE r.organization_id = %(organization)s AND r.month = %(month)s
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
_COUNT_ACCOUNT: LiteralString = """
    UPDATE accounts a SET month = %(month)s, month_held = s.held, month_settled = s.settled,
        cap_excess = CASE a.cap_period
            WHEN 'month' THEN greatest(0, s.held + s.settled - a.cap) ELSE a.cap_excess END
    FROM (
        SELECT coalesce(sum(month_held), 0) AS held, coalesce(sum(month_settled), 0) AS settled
        FROM project_accounts WHERE organization_id = %(organization)s
    ) s
    WHERE a.organization_id = %(organization)s
"""


async def find_period_caps(
    connection: Connection, organization_id: OrganizationId
) -> list[tuple[CapOwner, CapPeriod, int]]:
    """Returns every period cap of the organization with its amount."""
    cursor = await connection.execute(
        """
        SELECT subject_id, scope, period, cap FROM period_caps WHERE organization_id = %s
        ORDER BY subject_id, period
        """,
        (organization_id,),
        prepare=False,
    )
    return [
        (_owner(organization_id, subject_id, scope), CapPeriod(period), int(amount))
        for subject_id, scope, period, amount in await cursor.fetchall()
    ]


def _owner(organization_id: OrganizationId, subject_id: UUID, scope: str) -> CapOwner:
    return CapOwner(
        organization_id,
        ProjectId(subject_id) if scope == "project" else None,
        KeyId(subject_id) if scope == "key" else None,
    )


async def move_pending(connection: Connection, organization_id: OrganizationId) -> None:
    """Changes the month of rows in `unfolded` to that of their reservations. A settlement in flight
    may have read the old month, so this waits for the settlements of all organizations and blocks
    new ones until the transaction ends. Raises `Contention` if they take too long."""
    await limit_lock_waits(connection)
    try:
        await connection.execute("LOCK TABLE unfolded IN SHARE ROW EXCLUSIVE MODE")
    except pg.LockNotAvailable as exc:
        raise Contention from exc
    await connection.execute(
        """
        UPDATE unfolded u SET month = r.month FROM reservations r
        WHERE u.organization_id = %s AND r.organization_id = u.organization_id
          AND r.id = u.reservation_id AND u.month <> r.month
        """,
        (organization_id,),
        prepare=False,
    )
