"""Contains the SQL that resets caps after the database's clock ran ahead: reservations that count
for a future day are assigned to an earlier day. Afterwards `cap_counts` recounts the caps.

The caller has locked the account, so no other transaction creates holds (amounts reserved before
calls) or folds (adds) resolutions into the account. Calls are still settled: the resolutions wait
in the table `unfolded`, and count as held until they are folded into the account.
"""

from dataclasses import dataclass
from typing import LiteralString

from psycopg import errors as pg

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import StateConflict
from tollkeeper.domain.months import Month, month_of_number
from tollkeeper.storage.database import Connection, Contention
from tollkeeper.storage.ledger_months import limit_lock_waits


@dataclass(frozen=True, slots=True)
class CountedDates:
    """Contains the database's time, the latest month of the counters of an organization and its
    projects, and the organization's spending day. Month 202611 is November 2026. Days are counted from
    1970-01-01."""

    now_s: int
    month: int
    # None if the organization has no period caps (caps with their own counters).
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


async def correct_spending_days(
    connection: Connection, organization_id: OrganizationId, today: int
) -> int:
    """Corrects the spending day (the day on which caps count a reservation) of each reservation
    whose spending day or month is after today. The new spending day is the day when the hold was
    created, or today if that day is in the future. Returns the number of corrected reservations.
    Raises StateConflict if such a reservation belongs to a closed month."""
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


async def begin_periods(
    connection: Connection, organization_id: OrganizationId, today: int
) -> None:
    """Sets every period cap to the period that contains today, with counters of zero, and the
    account's spending day to today."""
    await connection.execute(
        """
        UPDATE period_caps SET number = cap_period_number(period, %s), held = 0, settled = 0,
            cap_excess = 0, settled_dropped = 0
        WHERE organization_id = %s
        """,
        (today, organization_id),
    )
    await connection.execute(
        "UPDATE accounts SET spending_day = %s WHERE organization_id = %s AND spending_day IS NOT NULL",
        (today, organization_id),
    )


async def find_dropped(
    connection: Connection, organization_id: OrganizationId, today: int
) -> Month | None:
    """Returns a dropped ledger month with calls of the organization that may count for the current
    month or for the current period of a cap ("may", because the totals of a dropped month contain only
    the spending month of its calls, not the day). Returns None if there is no such ledger month."""
    cursor = await connection.execute(
        """
        SELECT t.month FROM ledger_close_totals t
        JOIN ledger_close_steps s ON s.month = t.month AND s.step = 'dropped'
        WHERE t.organization_id = %(organization)s AND t.spending_month >= cap_period_number('month',
            least(%(today)s::integer, (SELECT min(cap_period_first_day(period, number))
                FROM period_caps WHERE organization_id = %(organization)s)))
        LIMIT 1
        """,
        {"organization": organization_id, "today": today},
        prepare=False,
    )
    row = await cursor.fetchone()
    return None if row is None else month_of_number(row[0])


async def correct_unfolded_months(connection: Connection, organization_id: OrganizationId) -> None:
    """Sets the month of each row in `unfolded` to the corrected month of its reservation. A
    settlement in flight may have read the old month, so this function waits for the settlements of
    all organizations, and blocks new settlements until the transaction ends. Raises `Contention` if
    settlements take too long."""
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
