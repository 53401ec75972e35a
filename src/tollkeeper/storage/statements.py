"""Contains the SQL for the monthly statements of organizations. Reads only the grants and the
roll-up (stored sums) of costs, because both remain when a ledger month is dropped."""

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.payments import GrantKind
from tollkeeper.domain.reports import DAY_S, DayRange
from tollkeeper.domain.statements import GrantTotal, ProjectCost
from tollkeeper.storage.database import Connection


async def find_costs(
    connection: Connection, organization_id: OrganizationId, days: DayRange
) -> list[ProjectCost]:
    cursor = await connection.execute(
        """
        SELECT c.project_id, p.name, c.line_item, sum(c.amount_picousd)
        FROM cost_rollup c
        JOIN projects p ON p.organization_id = c.organization_id AND p.id = c.project_id
        WHERE c.organization_id = %s AND c.day >= %s AND c.day < %s
        GROUP BY c.project_id, p.name, c.line_item
        """,
        (organization_id, days.first, days.end),
    )
    return [ProjectCost(*row) for row in await cursor.fetchall()]


async def find_grant_totals(
    connection: Connection, organization_id: OrganizationId, days: DayRange
) -> list[GrantTotal]:
    cursor = await connection.execute(
        """
        SELECT kind, count(*), sum(amount) FROM grants
        WHERE organization_id = %s
          AND granted_at >= to_timestamp(%s) AND granted_at < to_timestamp(%s)
        GROUP BY kind ORDER BY kind
        """,
        (organization_id, days.first * DAY_S, days.end * DAY_S),
    )
    return [GrantTotal(GrantKind(row[0]), *row[1:]) for row in await cursor.fetchall()]


async def sum_balance_changes_from(
    connection: Connection, organization_id: OrganizationId, day: int
) -> int:
    """Returns the sum of all grants minus the sum of all costs, from this day on."""
    cursor = await connection.execute(
        """
        SELECT (SELECT coalesce(sum(amount), 0) FROM grants
                WHERE organization_id = %(organization)s AND granted_at >= to_timestamp(%(time)s))
            - (SELECT coalesce(sum(amount_picousd), 0) FROM cost_rollup
               WHERE organization_id = %(organization)s AND day >= %(day)s)
        """,
        {"organization": organization_id, "day": day, "time": day * DAY_S},
    )
    [[change]] = await cursor.fetchall()
    return int(change)


async def read_open_day(connection: Connection) -> int:
    """Returns the first day after the last closed month, or 0 if no month is closed. Days are counted
    from 1970-01-01."""
    cursor = await connection.execute("SELECT ledger_open_day()")
    [[open_day]] = await cursor.fetchall()
    return int(open_day)
