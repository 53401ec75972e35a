"""SQL of period caps for operators (set, remove, show) and for upkeep.

A caller that changes them must have locked the account before, with all resolutions folded in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.caps import (
    DAY_S,
    CapPeriod,
    PeriodCap,
    end_day,
    first_day,
    period_number,
)
from tollkeeper.domain.months import Month
from tollkeeper.domain.views import CapUse, cap_use
from tollkeeper.storage.database import Connection
from tollkeeper.storage.watched_connection import allow_long_statements


@dataclass(frozen=True, slots=True)
class CapOwner:
    """Identifies the owner of a cap: an organization, a project or a key."""

    organization_id: OrganizationId
    project_id: ProjectId | None = None
    # The first in a chain of rotated keys.
    first_key_id: KeyId | None = None

    @property
    def subject_id(self) -> UUID:
        return self.first_key_id or self.project_id or self.organization_id

    @property
    def scope(self) -> str:
        if self.first_key_id is not None:
            return "key"
        return "organization" if self.project_id is None else "project"


async def find_first_key(
    connection: Connection, organization_id: OrganizationId, key_id: KeyId
) -> tuple[KeyId, ProjectId] | None:
    """Returns the first in the chain of rotated keys that led to this one, and their project."""
    cursor = await connection.execute(
        """
        SELECT coalesce(first_key_id, id), project_id FROM project_keys
        WHERE organization_id = %s AND id = %s
        """,
        (organization_id, key_id),
    )
    row = await cursor.fetchone()
    return None if row is None else (row[0], row[1])


async def find_latest_day(
    connection: Connection, organization_id: OrganizationId, today: int
) -> int:
    """Returns today, or a later day that reservations count for if the clock was set back since."""
    cursor = await connection.execute(
        """
        SELECT greatest(%(today)s::integer,
            (SELECT max(cap_spending_day(NULL, held_at)) FROM reservations
             WHERE organization_id = %(organization)s AND spending_day IS NULL
               AND held_at >= to_timestamp(%(tomorrow)s)),
            (SELECT max(spending_day) FROM reservations
             WHERE organization_id = %(organization)s AND spending_day > %(today)s))
        """,
        {"organization": organization_id, "today": today, "tomorrow": (today + 1) * DAY_S},
        prepare=False,
    )
    [[found]] = await cursor.fetchall()
    return int(found)


async def count_period(
    connection: Connection, owner: CapOwner, period: CapPeriod, day: int
) -> PeriodCap:
    """Counts the held and settled amounts in the period of this day from the reservations, as a cap
    without an amount. A resolution that is not folded in yet still counts as held: its fold will
    change that."""
    # Calls wait for the lock meanwhile, but one minute suffices for millions of reservations.
    await allow_long_statements(connection, minutes=1)
    number = period_number(period, day)
    first, end = first_day(period, number), end_day(period, number)
    cursor = await connection.execute(
        _COUNT_PERIOD,
        {
            "organization": owner.organization_id,
            "project": owner.project_id if owner.first_key_id is None else None,
            "key": owner.first_key_id,
            "first_day": first,
            "end_day": end,
            "begins": first * DAY_S,
            "ends": end * DAY_S,
        },
        prepare=False,
    )
    [[held, settled]] = await cursor.fetchall()
    return PeriodCap(0, number, int(held), int(settled))


_COUNT_PERIOD: LiteralString = """
    WITH counted AS (
        SELECT organization_id, id, project_id, api_key_id, hold FROM reservations
        WHERE organization_id = %(organization)s AND spending_day IS NULL
          AND held_at >= to_timestamp(%(begins)s) AND held_at < to_timestamp(%(ends)s)
        UNION ALL
        SELECT organization_id, id, project_id, api_key_id, hold FROM reservations
        WHERE organization_id = %(organization)s
          AND spending_day >= %(first_day)s AND spending_day < %(end_day)s
    )
    SELECT coalesce(sum(r.hold) FILTER (WHERE d.reservation_id IS NULL OR u.kind IS NOT NULL), 0),
        coalesce(sum(d.settled + coalesce(o.amount, 0)) FILTER (WHERE u.kind IS NULL), 0)
    FROM counted r
    JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.api_key_id
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
    LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
    LEFT JOIN unfolded u ON u.organization_id = r.organization_id AND u.reservation_id = r.id
      AND u.kind = 'resolved'
    WHERE (%(project)s::uuid IS NULL OR r.project_id = %(project)s)
      AND (%(key)s::uuid IS NULL OR coalesce(k.first_key_id, k.id) = %(key)s)
"""


async def write_cap(
    connection: Connection, owner: CapOwner, period: CapPeriod, cap: PeriodCap, day: int
) -> None:
    """Writes the cap with its counts; `day` is the day that the organization's holds count for."""
    await connection.execute(
        """
        INSERT INTO period_caps (organization_id, subject_id, scope, period, cap, cap_excess,
                                 number, held, settled)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
        ON CONFLICT (organization_id, subject_id, period)
        DO UPDATE SET cap = excluded.cap, cap_excess = excluded.cap_excess
        """,
        (
            owner.organization_id,
            owner.subject_id,
            owner.scope,
            period,
            cap.amount_picousd,
            cap.excess_picousd,
            cap.number,
            cap.held_picousd,
            cap.settled_picousd,
        ),
    )
    await connection.execute(
        "UPDATE accounts SET spending_day = %s WHERE organization_id = %s",
        (day, owner.organization_id),
    )


async def delete_cap(connection: Connection, owner: CapOwner, period: CapPeriod) -> None:
    await connection.execute(
        "DELETE FROM period_caps WHERE organization_id = %s AND subject_id = %s AND period = %s",
        (owner.organization_id, owner.subject_id, period),
    )
    await connection.execute(
        """
        UPDATE accounts a SET spending_day = NULL WHERE organization_id = %s
          AND NOT EXISTS (SELECT FROM period_caps c WHERE c.organization_id = a.organization_id)
        """,
        (owner.organization_id,),
    )


async def find_uses(
    connection: Connection,
    organization_id: OrganizationId,
    subjects: Sequence[UUID] | None = None,
) -> list[CapUse]:
    """Returns the period caps of the organization, then of its projects, then of keys, oldest
    first; with `subjects`, only theirs. For rotated keys, names the newest."""
    subject_ids = None if subjects is None else list(subjects)
    cursor = await connection.execute(
        _FIND_USES, {"organization": organization_id, "subjects": subject_ids}
    )
    return [_cap_use(row) for row in await cursor.fetchall()]


# Includes amounts that resolutions have returned and that are not folded in yet. The server's clock
# determines the current day, as in admission.
PERIOD_BALANCES: LiteralString = """
    pending AS (
        SELECT u.organization_id, u.project_id, coalesce(k.first_key_id, k.id) AS first_key_id,
            cap_spending_day(r.spending_day, r.held_at) AS day, sum(u.hold) AS hold,
            sum(u.settled + u.overage) AS spent
        FROM unfolded u
        JOIN reservations r ON r.organization_id = u.organization_id AND r.id = u.reservation_id
        JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.api_key_id
        WHERE u.kind = 'resolved'
          AND u.organization_id IN (SELECT organization_id FROM period_caps)
        GROUP BY 1, 2, 3, 4
    ), period_balances AS (
        SELECT c.organization_id, c.subject_id, c.scope, c.period, c.cap, c.number,
            c.held - coalesce(sum(p.hold), 0) AS held,
            c.settled + coalesce(sum(p.spent), 0) AS settled,
            greatest(a.spending_day, cap_spending_day(NULL, clock_timestamp())) AS day
        FROM period_caps c JOIN accounts a USING (organization_id)
        LEFT JOIN pending p ON p.organization_id = c.organization_id
          AND c.subject_id IN (p.organization_id, p.project_id, p.first_key_id)
          AND cap_period_number(c.period, p.day) = c.number
        GROUP BY c.organization_id, c.subject_id, c.period, a.spending_day
    )
"""
# Finds the newest of the keys that share the cap `c`.
NEWEST_KEY: LiteralString = """
    LEFT JOIN LATERAL (
        SELECT k.id, k.project_id, k.created_at FROM project_keys k
        WHERE c.scope = 'key' AND k.organization_id = c.organization_id
          AND (k.id = c.subject_id OR k.first_key_id = c.subject_id)
        ORDER BY k.replaced_by IS NULL DESC, k.created_at DESC LIMIT 1
    ) k ON true
"""
_FIND_USES: LiteralString = (
    "WITH "  # noqa: S608 - the pieces are constants of this file
    + PERIOD_BALANCES
    + """
    SELECT coalesce(p.id, k.project_id), k.id, CASE c.scope WHEN 'key' THEN c.subject_id END, c.cap,
        c.period, c.number, c.held, c.settled, c.day
    FROM period_balances c
    LEFT JOIN projects p ON c.scope = 'project'
      AND p.organization_id = c.organization_id AND p.id = c.subject_id
    """
    + NEWEST_KEY
    + """
    WHERE c.organization_id = %(organization)s
      AND (%(subjects)s::uuid[] IS NULL OR c.subject_id = ANY (%(subjects)s))
    ORDER BY array_position(ARRAY['organization', 'project', 'key'], c.scope),
        coalesce(p.created_at, k.created_at), c.subject_id,
        array_position(ARRAY['day', 'week', 'month'], c.period)
    """
)


def _cap_use(row: tuple[Any, ...]) -> CapUse:
    project_id, key_id, first_key_id, amount, period_text, number, held, settled, day = row
    period = CapPeriod(period_text)
    current = PeriodCap(amount, number, held, settled).in_period(period_number(period, day))
    return cap_use(project_id, period, current, key_id, first_key_id)


async def find_behind(connection: Connection, limit: int) -> list[OrganizationId]:
    """Returns organizations with caps whose period is over."""
    cursor = await connection.execute(
        """
        SELECT DISTINCT c.organization_id FROM period_caps c
        WHERE c.number < cap_period_number(c.period, cap_spending_day(NULL, clock_timestamp()))
        LIMIT %s
        """,
        (limit,),
        prepare=False,
    )
    return [row[0] for row in await cursor.fetchall()]


async def begin_periods(connection: Connection, organization_id: OrganizationId) -> None:
    """Begins the current period of the organization's outdated caps."""
    cursor = await connection.execute(
        """
        UPDATE accounts
        SET spending_day = greatest(spending_day, cap_spending_day(NULL, clock_timestamp()))
        WHERE organization_id = %s AND spending_day IS NOT NULL RETURNING spending_day
        """,
        (organization_id,),
    )
    row = await cursor.fetchone()
    if row is None:
        return
    await connection.execute(
        """
        UPDATE period_caps SET number = cap_period_number(period, %(day)s), held = 0, settled = 0,
            cap_excess = 0, settled_dropped = 0
        WHERE organization_id = %(organization)s AND number < cap_period_number(period, %(day)s)
        """,
        {"organization": organization_id, "day": row[0]},
    )


async def note_dropped(connection: Connection, month: Month) -> None:
    """Records how much of the current caps belongs to a month that is being dropped. The caller
    holds a lock that prevents new reservations."""
    await connection.execute(
        _NOTE_DROPPED, {"first": month.first_id, "behind": month.end_id}, prepare=False
    )


_NOTE_DROPPED: LiteralString = """
    WITH dropped AS (
        SELECT r.organization_id, r.project_id, coalesce(k.first_key_id, k.id) AS first_key_id,
            cap_spending_day(r.spending_day, r.held_at) AS day,
            sum(d.settled + coalesce(o.amount, 0)) AS spent
        FROM reservations r
        JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.api_key_id
        JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
          AND d.reservation_id >= %(first)s AND d.reservation_id < %(behind)s
        LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
          AND o.reservation_id >= %(first)s AND o.reservation_id < %(behind)s
        WHERE r.id >= %(first)s AND r.id < %(behind)s
          AND r.organization_id IN (SELECT organization_id FROM period_caps)
          AND (r.spending_day IS NOT NULL OR r.held_at >= (
              SELECT to_timestamp(min(cap_period_first_day(period, number))::bigint * 86400)
              FROM period_caps))
        GROUP BY 1, 2, 3, 4
    ), counted AS (
        SELECT c.organization_id, c.subject_id, c.period, sum(x.spent) AS spent
        FROM period_caps c JOIN dropped x ON x.organization_id = c.organization_id
          AND c.subject_id IN (x.organization_id, x.project_id, x.first_key_id)
          AND cap_period_number(c.period, x.day) = c.number
        GROUP BY 1, 2, 3
    )
    UPDATE period_caps c SET settled_dropped = c.settled_dropped + x.spent FROM counted x
    WHERE c.organization_id = x.organization_id AND c.subject_id = x.subject_id
      AND c.period = x.period
"""
