"""SQL of activity lists with filters, page by page. Each page reads a bounded number of records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString
from uuid import UUID

from tollkeeper.domain.traffic import STEP_S, TrafficFilter
from tollkeeper.storage.activity import ActivityEntry, entry_of_row, select_entries
from tollkeeper.storage.database import Connection
from tollkeeper.storage.traffic import conditions


@dataclass(frozen=True, slots=True)
class Position:
    """Where a page ended: the next one begins with older records."""

    started_at_ms: int
    request_id: UUID


@dataclass(frozen=True, slots=True)
class RareFilter:
    """Filters that no roll-up knows."""

    policy_id: str | None = None
    matched_only: bool = False
    cost_picousd_min: int | None = None

    def __bool__(self) -> bool:
        return self.policy_id is not None or self.cost_picousd_min is not None


async def find_in_steps(
    connection: Connection,
    steps: Sequence[int],
    wanted: TrafficFilter,
    rare: RareFilter,
    *,
    before: Position | None,
    end: int,
    limit: int,
) -> list[ActivityEntry]:
    """The newest records of these steps that are older than `before` and than `end`."""
    condition, values = conditions(wanted)
    if before is not None:
        condition += _BEFORE
    if rare.cost_picousd_min is not None:
        condition += " AND cost >= %(cost)s"
    if rare.policy_id is not None:
        condition += _JUDGED
    statement = select_entries(_IN_STEPS.format(condition=condition))
    cursor = await connection.execute(
        statement,
        {
            **values,
            "steps": list(steps),
            "step_s": STEP_S,
            "before_ms": None if before is None else before.started_at_ms,
            "before_id": None if before is None else before.request_id,
            "cost": rare.cost_picousd_min,
            "policy": rare.policy_id,
            "matched": rare.matched_only,
            "oldest": min(steps, default=0) * STEP_S,
            "newest": (max(steps, default=0) + 1) * STEP_S,
            "until": end,
            "limit": limit,
        },
        prepare=False,
    )
    return [entry_of_row(row) for row in await cursor.fetchall()]


_BEFORE: LiteralString = """
    AND (started_at, request_id)
        < (to_timestamp(%(before_ms)s::bigint / 1000.0), %(before_id)s::uuid)
"""
# The policy's verdicts of the time in question are read once, by its own index: IS TRUE keeps the
# planner from reading them again for every step.
_JUDGED: LiteralString = """
    AND (request_id IN (
        SELECT v.request_id FROM policy_verdicts v
        WHERE v.organization_id = coalesce(%(organization)s::uuid,
              (SELECT p.organization_id FROM policies p WHERE p.id = %(policy)s))
          AND v.policy_id = %(policy)s
          AND v.judged_at >= to_timestamp(%(oldest)s) - interval '1 hour'
          AND v.judged_at < to_timestamp(%(newest)s) + interval '1 day'
          AND (v.matched OR NOT %(matched)s)
    )) IS TRUE
"""
# One search of an index for each step; the steps between them are not read.
_IN_STEPS: LiteralString = """
    SELECT found.* FROM unnest(%(steps)s::bigint[]) AS s (step) CROSS JOIN LATERAL (
        SELECT * FROM activity r
        WHERE started_at >= to_timestamp(s.step * %(step_s)s)
          AND started_at < to_timestamp((s.step + 1) * %(step_s)s)
          AND started_at < to_timestamp(%(until)s) AND {condition}
        ORDER BY started_at DESC, request_id DESC LIMIT %(limit)s
    ) found ORDER BY started_at DESC, request_id DESC LIMIT %(limit)s
"""
