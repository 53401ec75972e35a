"""SQL that reads the roll-ups of activity."""

from typing import LiteralString

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.traffic import (
    STEP_S,
    BackendTraffic,
    LatencyCount,
    StepCount,
    TimeRange,
    TrafficFilter,
)
from tollkeeper.storage.database import Connection

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
    """The newest step first. Where no tenant is named, the roll-up without tenants answers."""
    condition, values = conditions(wanted)
    table: LiteralString = "traffic" if wanted.names_a_tenant else "traffic_by_backend"
    cursor = await connection.execute(
        _COUNT_BY_STEP.format(table=table, condition=condition),
        {**values, **_steps(time)},
        prepare=False,
    )
    return [StepCount(*row) for row in await cursor.fetchall()]


_COUNT_BY_STEP: LiteralString = """
    SELECT step, status, sum(requests)::bigint FROM {table}
    WHERE step >= %(start)s AND step < %(end)s AND {condition}
    GROUP BY step, status ORDER BY step DESC, status
"""


async def sum_by_backend(connection: Connection, time: TimeRange) -> list[BackendTraffic]:
    cursor = await connection.execute(_SUM_BY_BACKEND, _steps(time), prepare=False)
    return [BackendTraffic(*row) for row in await cursor.fetchall()]


_SUM_BY_BACKEND: LiteralString = """
    SELECT model, backend, replica, sum(requests)::bigint,
        coalesce(sum(requests) FILTER (WHERE status >= 400), 0)::bigint, sum(prompt_tokens)::bigint,
        sum(completion_tokens)::bigint, sum(cached_tokens)::bigint, sum(duration_ms)::bigint,
        sum(first_pieces)::bigint, sum(first_piece_ms)::bigint, sum(streamed_tokens)::bigint,
        sum(streaming_ms)::bigint
    FROM traffic_by_backend WHERE step >= %(start)s AND step < %(end)s
    GROUP BY model, backend, replica ORDER BY model, backend, replica
"""


async def count_latencies(connection: Connection, time: TimeRange) -> list[LatencyCount]:
    cursor = await connection.execute(_COUNT_LATENCIES, _steps(time), prepare=False)
    return [LatencyCount(*row) for row in await cursor.fetchall()]


_COUNT_LATENCIES: LiteralString = """
    SELECT model, backend, measure, rung, sum(requests)::bigint
    FROM traffic_latency WHERE step >= %(start)s AND step < %(end)s
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


def _steps(time: TimeRange) -> dict[str, int]:
    """Every step that overlaps the time."""
    return {"start": time.start // STEP_S, "end": (time.end - 1) // STEP_S + 1}
