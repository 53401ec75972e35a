"""Contains the SQL that reads the roll-ups of activity records: sums by step (five minutes) or by
hour, for reports."""

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

# The longest time range of a report by step, in seconds. A report about a longer time is by hour.
_BY_STEP_S_MAX = 2 * 86_400

_CONDITIONS: dict[str, LiteralString] = {
    "organization": "organization_id = %(organization)s",
    "project": "project_id = %(project)s",
    "key": "api_key_id = %(key)s",
    "model": "model = %(model)s",
    "first": "status BETWEEN %(first)s AND %(last)s",
}


def conditions(traffic_filter: TrafficFilter) -> tuple[LiteralString, dict[str, object]]:
    """Returns the SQL conditions for the filter's fields that are set, and all values. Each
    combination of conditions is a separate statement with its own query plan."""
    values: dict[str, object] = {
        "organization": traffic_filter.organization_id,
        "project": traffic_filter.project_id,
        "key": traffic_filter.key_id,
        "model": traffic_filter.model,
        "first": None if traffic_filter.status is None else traffic_filter.status.first,
        "last": None if traffic_filter.status is None else traffic_filter.status.last,
    }
    set_conditions: list[LiteralString] = [
        text for name, text in _CONDITIONS.items() if values[name] is not None
    ]
    return " AND ".join(["true", *set_conditions]), values


async def count_by_step(
    connection: Connection, traffic_filter: TrafficFilter, time: TimeRange
) -> list[StepCount]:
    """Counts calls by step, or by hour in a report about more than two days. The newest step comes
    first. If the filter names no tenant, reads the roll-ups over all tenants, one by step and one
    by hour. The roll-up by tenant exists only by step, so for a report by hour its steps are summed
    here."""
    condition, values = conditions(traffic_filter)
    table: LiteralString = "traffic" if traffic_filter.names_a_tenant else _without_tenants(time)
    is_by_hour = _is_by_hour(time) and traffic_filter.names_a_tenant
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
    traffic_filter: TrafficFilter,
    time: TimeRange,
    *,
    cost_picousd_min: int | None,
    limit: int,
) -> list[tuple[int, int]]:
    """Returns at most `limit` of the newest steps with calls, each with its number of activity records.
    With `cost_picousd_min`, returns only steps in which a call cost at least this amount."""
    condition, values = conditions(traffic_filter)
    table: LiteralString = "traffic" if traffic_filter.names_a_tenant else "traffic_by_backend"
    having: LiteralString = "" if cost_picousd_min is None else _HAS_EXPENSIVE_CALL
    cursor = await connection.execute(
        _FIND_STEPS.format(table=table, condition=condition, having=having),
        {**values, **_steps(time), "cost": cost_picousd_min, "limit": limit},
        prepare=False,
    )
    return [(row[0], row[1]) for row in await cursor.fetchall()]


_HAS_EXPENSIVE_CALL: LiteralString = "HAVING max(cost_max) >= %(cost)s"
_FIND_STEPS: LiteralString = """
    SELECT step, sum(requests - repeated)::bigint FROM {table}
    WHERE step >= %(start)s AND step < %(end)s AND {condition}
    GROUP BY step {having} ORDER BY step DESC LIMIT %(limit)s
"""


async def find_expensive_hours(
    connection: Connection, traffic_filter: TrafficFilter, time: TimeRange, cost_picousd_min: int
) -> list[int]:
    """Returns the first step of each hour in which a call of any tenant may have cost at least
    `cost_picousd_min`, newest first. Includes hours in which some calls were counted without their
    cost."""
    assert not traffic_filter.names_a_tenant
    condition, values = conditions(traffic_filter)
    hours = {**_steps(time), "cost": cost_picousd_min, "hour": STEPS_PER_HOUR}
    cursor = await connection.execute(
        _FIND_EXPENSIVE_HOURS.format(condition=condition), {**values, **hours}, prepare=False
    )
    return [row[0] for row in await cursor.fetchall()]


_FIND_EXPENSIVE_HOURS: LiteralString = """
    SELECT DISTINCT step FROM traffic_by_hour
    WHERE step > %(start)s - %(hour)s AND step < %(end)s
      AND (cost_max >= %(cost)s OR costed_requests < requests) AND {condition}
    ORDER BY step DESC
"""


async def find_expensive_steps(
    connection: Connection,
    traffic_filter: TrafficFilter,
    time: TimeRange,
    cost_picousd_min: int,
    hours: Sequence[int],
) -> list[tuple[int, int]]:
    """Works like `find_steps` with `cost_picousd_min`, but searches only the given hours."""
    assert not traffic_filter.names_a_tenant
    condition, values = conditions(traffic_filter)
    searched = {"hours": list(hours), "hour": STEPS_PER_HOUR, "cost": cost_picousd_min}
    cursor = await connection.execute(
        _FIND_EXPENSIVE_STEPS.format(condition=condition),
        {**values, **_steps(time), **searched},
        prepare=False,
    )
    return [(row[0], row[1]) for row in await cursor.fetchall()]


# Does one index search for each hour in `hours`, and reads no rows between these hours.
_FIND_EXPENSIVE_STEPS: LiteralString = """
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
    """Counts the calls in each latency bucket, over all hours that overlap the time range. If the
    hourly counts of the first day were already replaced by daily counts, includes that whole
    day."""
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
    """Returns the number of prompt tokens that were read from a cache, by model."""
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
    """Returns the range of steps that overlap the time range; `end` is exclusive. In a report by
    hour, the range begins at a full hour."""
    start = time.start // STEP_S
    if _is_by_hour(time):
        start -= start % STEPS_PER_HOUR
    return {"start": start, "end": (time.end - 1) // STEP_S + 1}
