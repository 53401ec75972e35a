"""SQL that reads the roll-ups of activity."""

from collections.abc import Sequence
from typing import LiteralString

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.traffic import (
    LATENCY_HOURS_KEPT_S,
    STEP_S,
    STEPS_PER_DAY,
    STEPS_PER_HOUR,
    BackendTraffic,
    LatencyCount,
    StepCount,
    TimeRange,
    TrafficFilter,
)
from tollkeeper.storage.database import Connection

# Up to this length, a report counts by steps, and beyond it by hours.
_BY_STEP_S_MAX = 2 * 86_400

_CONDITIONS: dict[str, LiteralString] = {
    "organization": "organization_id = %(organization)s",
    "project": "project_id = %(project)s",
    "key": "api_key_id = %(key)s",
    "model": "model = %(model)s",
    "first": "status BETWEEN %(first)s AND %(last)s",
}


def conditions(wanted: TrafficFilter) -> tuple[LiteralString, dict[str, object]]:
    """The conditions that are given, and their values. Each combination is a statement of its own,
    with a plan of its own."""
    values: dict[str, object] = {
        "organization": wanted.organization_id,
        "project": wanted.project_id,
        "key": wanted.key_id,
        "model": wanted.model,
        "first": None if wanted.status is None else wanted.status.first,
        "last": None if wanted.status is None else wanted.status.last,
    }
    given: list[LiteralString] = [
        text for name, text in _CONDITIONS.items() if values[name] is not None
    ]
    return " AND ".join(["true", *given]), values


async def count_by_step(
    connection: Connection, wanted: TrafficFilter, time: TimeRange
) -> list[StepCount]:
    """The newest step first. Where no tenant is named, the roll-up without tenants answers; in a
    report of days, the one that counts by hour. What a tenant has in steps is summed up by hour
    then."""
    condition, values = conditions(wanted)
    table: LiteralString = "traffic" if wanted.names_a_tenant else _without_tenants(time)
    is_by_hour = _is_by_hour(time) and wanted.names_a_tenant
    cursor = await connection.execute(
        _COUNT_BY_STEP.format(
            step=_HOUR_OF_STEP if is_by_hour else "step", table=table, condition=condition
        ),
        {**values, **_steps(time), "hour": STEPS_PER_HOUR},
        prepare=False,
    )
    return [StepCount(*row) for row in await cursor.fetchall()]


_HOUR_OF_STEP: LiteralString = "step - step %% %(hour)s"
_COUNT_BY_STEP: LiteralString = """
    SELECT {step}, status, sum(requests)::bigint FROM {table}
    WHERE step >= %(start)s AND step < %(end)s AND {condition}
    GROUP BY 1, status ORDER BY 1 DESC, status
"""


async def find_steps(
    connection: Connection,
    wanted: TrafficFilter,
    time: TimeRange,
    *,
    cost_picousd_min: int | None,
    limit: int,
) -> list[tuple[int, int]]:
    """The newest steps with calls, and how many records each has. With `cost_picousd_min`, those in which a
    call cost as much."""
    condition, values = conditions(wanted)
    table: LiteralString = "traffic" if wanted.names_a_tenant else "traffic_by_backend"
    dear: LiteralString = "" if cost_picousd_min is None else _DEAR
    cursor = await connection.execute(
        _FIND_STEPS.format(table=table, condition=condition, dear=dear),
        {**values, **_steps(time), "cost": cost_picousd_min, "limit": limit},
        prepare=False,
    )
    return [(row[0], row[1]) for row in await cursor.fetchall()]


_DEAR: LiteralString = "HAVING max(cost_max) >= %(cost)s"
_FIND_STEPS: LiteralString = """
    SELECT step, sum(requests - repeated)::bigint FROM {table}
    WHERE step >= %(start)s AND step < %(end)s AND {condition}
    GROUP BY step {dear} ORDER BY step DESC LIMIT %(limit)s
"""


async def find_dear_hours(
    connection: Connection, wanted: TrafficFilter, time: TimeRange, cost_picousd_min: int
) -> list[int]:
    """The first steps of the hours in which a call of any tenant may have cost as much, the newest
    first. An hour in which calls were counted without their cost is one of them."""
    assert not wanted.names_a_tenant
    condition, values = conditions(wanted)
    hours = {**_steps(time), "cost": cost_picousd_min, "hour": STEPS_PER_HOUR}
    cursor = await connection.execute(
        _FIND_DEAR_HOURS.format(condition=condition), {**values, **hours}, prepare=False
    )
    return [row[0] for row in await cursor.fetchall()]


_FIND_DEAR_HOURS: LiteralString = """
    SELECT DISTINCT step FROM traffic_by_hour
    WHERE step > %(start)s - %(hour)s AND step < %(end)s
      AND (cost_max >= %(cost)s OR costed_requests < requests) AND {condition}
    ORDER BY step DESC
"""


async def find_dear_steps(
    connection: Connection,
    wanted: TrafficFilter,
    time: TimeRange,
    cost_picousd_min: int,
    hours: Sequence[int],
) -> list[tuple[int, int]]:
    """Like `find_steps`, but in these hours only."""
    assert not wanted.names_a_tenant
    condition, values = conditions(wanted)
    searched = {"hours": list(hours), "hour": STEPS_PER_HOUR, "cost": cost_picousd_min}
    cursor = await connection.execute(
        _FIND_DEAR_STEPS.format(condition=condition),
        {**values, **_steps(time), **searched},
        prepare=False,
    )
    return [(row[0], row[1]) for row in await cursor.fetchall()]


# One search of an index for each hour; the hours between them are not read.
_FIND_DEAR_STEPS: LiteralString = """
    SELECT found.* FROM unnest(%(hours)s::integer[]) AS h (first) CROSS JOIN LATERAL (
        SELECT step, sum(requests - repeated)::bigint FROM traffic_by_backend
        WHERE step >= h.first AND step < h.first + %(hour)s
          AND step >= %(start)s AND step < %(end)s AND {condition}
        GROUP BY step HAVING max(cost_max) >= %(cost)s
    ) found ORDER BY step DESC
"""


async def sum_by_backend(connection: Connection, time: TimeRange) -> list[BackendTraffic]:
    cursor = await connection.execute(
        _SUM_BY_BACKEND.format(table=_without_tenants(time)), _steps(time), prepare=False
    )
    return [BackendTraffic(*row) for row in await cursor.fetchall()]


_SUM_BY_BACKEND: LiteralString = """
    SELECT model, backend, replica, sum(requests)::bigint,
        coalesce(sum(requests) FILTER (WHERE status BETWEEN 400 AND 499), 0)::bigint,
        coalesce(sum(requests) FILTER (WHERE status >= 500), 0)::bigint,
        sum(prompt_tokens)::bigint, sum(completion_tokens)::bigint, sum(cached_tokens)::bigint,
        sum(duration_ms)::bigint, sum(first_pieces)::bigint, sum(first_piece_ms)::bigint,
        sum(streamed_tokens)::bigint, sum(streaming_ms)::bigint
    FROM {table} WHERE step >= %(start)s AND step < %(end)s
    GROUP BY model, backend, replica ORDER BY model, backend, replica
"""


async def count_latencies(connection: Connection, time: TimeRange) -> list[LatencyCount]:
    """Of every hour that overlaps the time; of every day, where the hours are summed up."""
    steps = _steps(time)
    parameters = {
        "hour": steps["start"] - steps["start"] % STEPS_PER_HOUR,
        "day": steps["start"] - steps["start"] % STEPS_PER_DAY,
        "end": steps["end"],
        "hours_kept_s": LATENCY_HOURS_KEPT_S,
        "step_s": STEP_S,
    }
    cursor = await connection.execute(_COUNT_LATENCIES, parameters, prepare=False)
    return [LatencyCount(*row) for row in await cursor.fetchall()]


_COUNT_LATENCIES: LiteralString = """
    SELECT model, backend, measure, rung, sum(requests)::bigint FROM traffic_latency
    WHERE step < %(end)s AND step >= (SELECT CASE
        WHEN %(hour)s::bigint * %(step_s)s
             < extract(epoch FROM statement_timestamp()) - %(hours_kept_s)s
        THEN %(day)s::integer ELSE %(hour)s::integer END)
    GROUP BY model, backend, measure, rung
"""


async def sum_cached_tokens(
    connection: Connection, organization_id: OrganizationId, time: TimeRange
) -> dict[str, int]:
    """The prompt tokens that were read from a cache, by model."""
    cursor = await connection.execute(
        """
        SELECT model, sum(cached_tokens)::bigint FROM traffic
        WHERE organization_id = %(organization)s AND step >= %(start)s AND step < %(end)s
          AND cached_tokens > 0
        GROUP BY model
        """,
        {"organization": organization_id, **_steps(time)},
        prepare=False,
    )
    return {row[0]: row[1] for row in await cursor.fetchall()}


def _is_by_hour(time: TimeRange) -> bool:
    return time.end - time.start > _BY_STEP_S_MAX


def _without_tenants(time: TimeRange) -> LiteralString:
    return "traffic_by_hour" if _is_by_hour(time) else "traffic_by_backend"


def _steps(time: TimeRange) -> dict[str, int]:
    """Every step that overlaps the time; every hour, where it is one of days."""
    start = time.start // STEP_S
    if _is_by_hour(time):
        start -= start % STEPS_PER_HOUR
    return {"start": start, "end": (time.end - 1) // STEP_S + 1}
