"""SQL of the cost roll-up: one row a day, project, key and line item, kept by the settlement."""

from collections.abc import Sequence
from typing import LiteralString

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.reports import CostDimension, CostRow, DayRange
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
) -> list[CostRow]:
    """Sums by day and by the grouped dimensions; an empty filter filters nothing."""
    shown = ", ".join(
        column if dimension in group_by else f"NULL AS {column}"
        for dimension, column in _DIMENSIONS.items()
    )
    grouped = "".join(
        f", {_DIMENSIONS[dimension]}" for dimension in _DIMENSIONS if dimension in group_by
    )
    cursor = await connection.execute(
        f"""
        SELECT day, sum(amount_picousd), {shown} FROM cost_rollup
        WHERE organization_id = %(organization)s AND day >= %(first)s AND day < %(last)s
          AND (%(projects)s::uuid[] = '{{}}' OR project_id = ANY (%(projects)s))
          AND (%(keys)s::uuid[] = '{{}}' OR api_key_id = ANY (%(keys)s))
        GROUP BY day{grouped} ORDER BY day{grouped}
        """,  # noqa: S608
        {
            "organization": organization_id,
            "first": days.first,
            "last": days.last,
            "projects": list(project_ids),
            "keys": list(api_key_ids),
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
