"""Contains the SQL that reads costs and counts unsettled calls (of unknown cost). Costs are read from
the roll-up (stored sums), in which settlements update one row for each day, project, key and line
item."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.reports import DAY_S, CostDimension, CostRow, DayRange
from tollkeeper.storage.database import Connection

_DIMENSIONS: dict[CostDimension, LiteralString] = {
    CostDimension.PROJECT_ID: "project_id",
    CostDimension.API_KEY_ID: "api_key_id",
    CostDimension.LINE_ITEM: "line_item",
}


async def find_rows(
    connection: Connection,
    organization_id: OrganizationId,
    days: DayRange,
    *,
    project_ids: Sequence[ProjectId],
    api_key_ids: Sequence[KeyId],
    group_by: Sequence[CostDimension],
    limit: int | None = None,
) -> list[CostRow]:
    """Returns the costs by day and by the dimensions in `group_by`, the earliest day first. An empty
    list of ids means no filter. If `limit` is set, returns at most this many rows."""
    columns = ", ".join(
        column if dimension in group_by else f"NULL AS {column}"
        for dimension, column in _DIMENSIONS.items()
    )
    grouped = "".join(
        f", {_DIMENSIONS[dimension]}" for dimension in _DIMENSIONS if dimension in group_by
    )
    cursor = await connection.execute(
        f"""
        SELECT day, sum(amount_picousd), {columns} FROM cost_rollup
        WHERE organization_id = %(organization)s AND day >= %(first)s AND day < %(end)s
          AND (%(projects)s::uuid[] = '{{}}' OR project_id = ANY (%(projects)s))
          AND (%(keys)s::uuid[] = '{{}}' OR api_key_id = ANY (%(keys)s))
        GROUP BY day{grouped} ORDER BY day{grouped} LIMIT %(limit)s
        """,
        {
            "organization": organization_id,
            "first": days.first,
            "end": days.end,
            "projects": list(project_ids),
            "keys": list(api_key_ids),
            "limit": limit,
        },
    )
    return [
        CostRow(
            day=day,
            amount_picousd=amount,
            project_id=project_id,
            api_key_id=api_key_id,
            line_item=line_item,
        )
        for day, amount, project_id, api_key_id, line_item in await cursor.fetchall()
    ]


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Contains the number of calls with unknown cost, and the amount that is held for them."""

    calls: int
    hold_picousd: int


async def sum_unsettled(
    connection: Connection,
    organization_id: OrganizationId,
    days: DayRange,
    *,
    project_ids: Sequence[ProjectId] = (),
    api_key_ids: Sequence[KeyId] = (),
) -> Unsettled:
    """Counts the calls that were admitted on these days and whose cost is still unknown. An empty
    list of ids means no filter."""
    cursor = await connection.execute(
        _SUM_UNSETTLED,
        {
            "organization": organization_id,
            "first": days.first * DAY_S,
            "end": days.end * DAY_S,
            "projects": list(project_ids),
            "keys": list(api_key_ids),
        },
    )
    [row] = await cursor.fetchall()
    return Unsettled(*row)


_SUM_UNSETTLED: LiteralString = """
    SELECT count(*), coalesce(sum(r.hold), 0) FROM unsettled_marks m
    JOIN reservations r ON r.organization_id = m.organization_id AND r.id = m.reservation_id
    WHERE m.organization_id = %(organization)s
      AND r.held_at >= to_timestamp(%(first)s) AND r.held_at < to_timestamp(%(end)s)
      AND (%(projects)s::uuid[] = '{}' OR r.project_id = ANY (%(projects)s))
      AND (%(keys)s::uuid[] = '{}' OR r.api_key_id = ANY (%(keys)s))
      AND NOT EXISTS (SELECT FROM resolutions d
          WHERE d.organization_id = m.organization_id AND d.reservation_id = m.reservation_id)
"""
