"""Contains the SQL for the usage of judges (models that answer policy questions), by organization,
backend, model and UTC day."""

from collections.abc import Sequence
from typing import Any, LiteralString

import msgspec

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.reports import DayRange
from tollkeeper.storage.database import Connection
from tollkeeper.storage.rollups import USAGE_SUMS, added


class JudgeUsage(msgspec.Struct):
    """Contains the sums for one organization, day, backend and model, or a part of these sums that
    is not written yet."""

    organization_id: OrganizationId
    # The number of days since 1970-01-01.
    day: int
    backend: str
    # The model's name at the backend.
    model: str
    questions: int = 0
    # The number of questions for which the backend reported no tokens.
    unreported_questions: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    cost_picousd: int = 0
    reported_cost_picousd: int = 0

    def add(self, other: "JudgeUsage") -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


# All fields after the four fields that identify the sums.
_SUMS = JudgeUsage.__struct_fields__[4:]


async def add(connection: Connection, used: Sequence[JudgeUsage]) -> None:
    """Adds the usage to the stored sums. Writes rows in a fixed order, so that two processes that
    write the same rows do not deadlock."""
    columns = list(zip(*map(_row, used), strict=True))
    await connection.execute(_ADD, [list(column) for column in columns], prepare=False)


def _row(used: JudgeUsage) -> tuple[Any, ...]:
    return msgspec.structs.astuple(used)


_ADD: LiteralString = """
    INSERT INTO judge_usage AS t (organization_id, day, backend, model, questions,
        unreported_questions, input_tokens, cached_tokens, cache_write_tokens, output_tokens, cost,
        reported_cost)
    SELECT * FROM unnest(%s::uuid[], %s::integer[], %s::text[], %s::text[], %s::bigint[],
        %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::numeric[],
        %s::numeric[]) AS used (organization_id)
    ORDER BY 1, 2, 3, 4
    ON CONFLICT (organization_id, day, backend, model)
    DO UPDATE SET """ + added("questions", "unreported_questions", *USAGE_SUMS)


async def find(
    connection: Connection, organization_id: OrganizationId, days: DayRange
) -> list[JudgeUsage]:
    """Returns the sums over these days, by backend and model. The field `day` contains the first
    day with usage."""
    cursor = await connection.execute(
        """
        SELECT organization_id, min(day), backend, model, sum(questions)::bigint,
            sum(unreported_questions)::bigint, sum(input_tokens)::bigint,
            sum(cached_tokens)::bigint, sum(cache_write_tokens)::bigint, sum(output_tokens)::bigint,
            sum(cost), sum(reported_cost)
        FROM judge_usage WHERE organization_id = %s AND day >= %s AND day < %s
        GROUP BY organization_id, backend, model ORDER BY backend, model
        """,
        (organization_id, days.first, days.end),
    )
    return [_usage(row) for row in await cursor.fetchall()]


def _usage(row: Sequence[Any]) -> JudgeUsage:
    return JudgeUsage(*(*row[:-2], *map(int, row[-2:])))
