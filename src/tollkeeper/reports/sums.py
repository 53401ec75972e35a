"""Reads every sum of a page, a command and the API. Name the fact, the period, the filters, what to
group by and what to add up:

    await read(connection, MONEY, days, {"organization_id": one}, by=("day", "project_id"), add=("amount",))

There are three facts: money, calls (of tenants, of all organizations by backend, their latencies, and
what providers charge for) and verdicts. They're added up while they are written (`resolutions`,
`rollups`), so a report costs the same after a thousand calls and after a billion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.months import request_id
from tollkeeper.core.reports import DAY_S, CostDimension, CostRow, DayRange
from tollkeeper.database.database import Connection
from tollkeeper.database.server_time import read_time
from tollkeeper.reports.rollups import EVERYBODY
from tollkeeper.reports.traffic.rule import (
    LATENCY_HOURS_KEPT_S,
    STEP_S,
    STEPS_PER_DAY,
    STEPS_PER_HOUR,
    BackendTraffic,
    LatencyCount,
    StatusRange,
    StepCount,
    TimeRange,
    TrafficFilter,
)

# Longer reports are by hour.
_BY_STEP_S_MAX = 2 * 86_400
_HOUR_MS = 3_600_000
# From the time in a call's id to its admission: it may wait first, and clocks may differ.
_ID_MARGIN_HOURS = 1


@dataclass(frozen=True, slots=True)
class Fact:
    source: LiteralString
    # Of the period.
    time: LiteralString
    # What isn't simply a column or the sum of one.
    expressions: Mapping[str, LiteralString] = field(default_factory=dict)
    # For all rows.
    only: Mapping[str, object] = field(default_factory=dict)


MONEY = Fact("cost_rollup", "day", {"amount": "coalesce(sum(amount_picousd), 0)"})
# OFFSET 0 makes PostgreSQL search the index per organization, instead of reading all rows.
MONEY_OF_ALL = Fact(
    """organizations o CROSS JOIN LATERAL (
        SELECT * FROM cost_rollup
        WHERE organization_id = o.id AND day >= %(first)s AND day < %(end)s OFFSET 0
    ) of_one""",
    "day",
    MONEY.expressions,
)
_OF_CALLS: Mapping[str, LiteralString] = {
    "hour": "step - step %% 12",
    "records": "sum(requests - repeated)",
    "client_errors": "coalesce(sum(requests) FILTER (WHERE status BETWEEN 400 AND 499), 0)",
    "failures": "coalesce(sum(requests) FILTER (WHERE status >= 500), 0)",
}
CALLS = Fact("traffic", "step", _OF_CALLS, {"steps": 1})
_OF_ALL = {"organization_id": EVERYBODY}
CALLS_OF_ALL = Fact("traffic", "step", _OF_CALLS, {**_OF_ALL, "steps": 1})
CALLS_OF_ALL_BY_HOUR = Fact("traffic", "step", _OF_CALLS, {**_OF_ALL, "steps": STEPS_PER_HOUR})
LATENCIES = Fact("traffic_latency", "step")
# In the order of `JudgeUsage`.
USAGE_SUMS: tuple[LiteralString, ...] = (
    *("requests", "unsettled_requests", "input_tokens", "cached_tokens", "cache_write_tokens"),
    *("output_tokens", "cost", "reported_cost"),
)
USAGE = Fact("backend_usage", "day", {"first_day": "min(day)"})
VERDICTS = Fact(
    "verdict_counts",
    "day",
    {"unanswered": "coalesce(sum(asked) FILTER (WHERE probability_basis_points < 0), 0)"},
)


async def read(
    connection: Connection,
    fact: Fact,
    period: DayRange | range,
    where: Mapping[str, object],
    *,
    by: Sequence[LiteralString] = (),
    add: Sequence[LiteralString],
    highest: tuple[LiteralString, int] | None = None,
    newest_first: bool = False,
    limit: int | None = None,
) -> list[tuple[Any, ...]]:
    """Columns `by` and sums `add`, ordered by `by`; one row if nothing is grouped. Filters: None or
    empty doesn't count, a sequence means any of it. `highest` leaves out groups whose highest value
    of a column is below an amount."""
    condition, values = filters({**where, **fact.only})
    statement = _statement(
        fact, condition, by, add, highest and highest[0], newest_first=newest_first
    )
    first, end = (
        (period.start, period.stop) if isinstance(period, range) else (period.first, period.end)
    )
    values |= {"first": first, "end": end, "limit": limit, "highest": highest and highest[1]}
    cursor = await connection.execute(statement, values, prepare=False)
    return await cursor.fetchall()


def _statement(
    fact: Fact,
    condition: LiteralString,
    by: Sequence[LiteralString],
    add: Sequence[LiteralString],
    highest: LiteralString | None = None,
    *,
    newest_first: bool = False,
) -> LiteralString:
    """Each combination is a statement of its own, with its own plan."""
    groups = [fact.expressions.get(name, name) for name in by]
    sums = [fact.expressions.get(name, f"coalesce(sum({name}), 0)") for name in add]
    statement = f"""
        SELECT {", ".join(groups + sums)} FROM {fact.source}
        WHERE {fact.time} >= %(first)s AND {fact.time} < %(end)s AND {condition}
    """
    if by:
        places = [str(place) for place in range(1, len(by) + 1)]
        having = "" if highest is None else f"HAVING max({highest}) >= %(highest)s"
        order = [places[0] + " DESC", *places[1:]] if newest_first else places
        statement += f" GROUP BY {', '.join(places)} {having} ORDER BY {', '.join(order)}"
    return statement + " LIMIT %(limit)s"


def filters(where: Mapping[str, object]) -> tuple[LiteralString, dict[str, object]]:
    """Conditions and their values."""
    conditions: list[LiteralString] = ["true"]
    values: dict[str, object] = {}
    for name, value in where.items():
        if isinstance(value, StatusRange):
            conditions.append(f"{name} BETWEEN %({name}_first)s AND %({name}_last)s")
            values |= {f"{name}_first": value.first, f"{name}_last": value.last}
        elif isinstance(value, list | tuple):
            if value:
                conditions.append(f"{name} = ANY (%({name})s)")
                values[name] = list(value)
        elif value is not None:
            conditions.append(f"{name} = %({name})s")
            values[name] = value
    return " AND ".join(conditions), values


# Money.


async def find_costs(
    connection: Connection,
    organization_id: OrganizationId,
    days: DayRange,
    *,
    project_ids: Sequence[ProjectId] = (),
    api_key_ids: Sequence[KeyId] = (),
    group_by: Sequence[CostDimension] = (),
    limit: int | None = None,
) -> list[CostRow]:
    """Earliest first."""
    dimensions = [dimension.value for dimension in CostDimension if dimension in group_by]
    rows = await read(
        connection,
        MONEY,
        days,
        {"organization_id": organization_id, "project_id": project_ids, "api_key_id": api_key_ids},
        by=("day", *dimensions),
        add=("amount",),
        limit=limit,
    )
    return [
        CostRow(day=row[0], amount_picousd=row[-1], **dict(zip(dimensions, row[1:-1], strict=True)))
        for row in rows
    ]


async def find_costs_by_hour(
    connection: Connection,
    organization_id: OrganizationId,
    hours: range,
    *,
    project_ids: Sequence[ProjectId],
    api_key_ids: Sequence[KeyId],
) -> dict[int, int]:
    """By hour of admission, since 1970. Money is added up by day, so this reads the calls."""
    # An id has the time when the call began, by its gateway's clock.
    first_id, end_id = (
        request_id(hour * _HOUR_MS, 0)
        for hour in (hours.start - _ID_MARGIN_HOURS, hours.stop + _ID_MARGIN_HOURS)
    )
    condition, values = filters({"project_id": project_ids, "api_key_id": api_key_ids})
    cursor = await connection.execute(
        _COSTS_BY_HOUR.format(condition=condition),
        {
            **values,
            "organization": organization_id,
            "first_id": first_id,
            "end_id": end_id,
            "first": hours.start * 3600,
            "end": hours.stop * 3600,
        },
        prepare=False,
    )
    return dict(await cursor.fetchall())


_COSTS_BY_HOUR: LiteralString = """
    SELECT floor(extract(epoch FROM r.held_at) / 3600)::bigint,
        sum(d.settled + coalesce(o.amount, 0))
    FROM reservations r
    JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
      AND d.reservation_id >= %(first_id)s AND d.reservation_id < %(end_id)s
    LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
      AND o.reservation_id >= %(first_id)s AND o.reservation_id < %(end_id)s
    WHERE r.organization_id = %(organization)s AND r.id >= %(first_id)s AND r.id < %(end_id)s
      AND r.held_at >= to_timestamp(%(first)s) AND r.held_at < to_timestamp(%(end)s)
      AND {condition}
    GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Unsettled:
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
    """Admitted on these days, cost still unknown. They're few, so nothing adds them up."""
    condition, values = filters({"project_id": project_ids, "api_key_id": api_key_ids})
    cursor = await connection.execute(
        _SUM_UNSETTLED.format(condition=condition),
        {
            **values,
            "organization": organization_id,
            "first": days.first * DAY_S,
            "end": days.end * DAY_S,
        },
        prepare=False,
    )
    [row] = await cursor.fetchall()
    return Unsettled(*row)


_SUM_UNSETTLED: LiteralString = """
    SELECT count(*), coalesce(sum(r.hold), 0) FROM unsettled_marks m
    JOIN reservations r ON r.organization_id = m.organization_id AND r.id = m.reservation_id
    WHERE m.organization_id = %(organization)s
      AND r.held_at >= to_timestamp(%(first)s) AND r.held_at < to_timestamp(%(end)s)
      AND {condition}
      AND NOT EXISTS (SELECT FROM resolutions d
          WHERE d.organization_id = m.organization_id AND d.reservation_id = m.reservation_id)
"""


# Calls.


def of_calls(traffic_filter: TrafficFilter) -> dict[str, object]:
    return {
        "organization_id": traffic_filter.organization_id,
        "project_id": traffic_filter.project_id,
        "api_key_id": traffic_filter.key_id,
        "model": traffic_filter.model,
        "status": traffic_filter.status,
    }


async def count_by_step(
    connection: Connection, traffic_filter: TrafficFilter, time: TimeRange
) -> list[StepCount]:
    """By hour if it's more than two days, newest first. Tenants' calls are stored by step only."""
    is_of_tenant = traffic_filter.names_a_tenant
    rows = await read(
        connection,
        CALLS if is_of_tenant else _of_all(time),
        steps_of(time),
        of_calls(traffic_filter),
        by=("hour" if is_of_tenant and _is_by_hour(time) else "step", "status"),
        add=("requests",),
        newest_first=True,
    )
    return [StepCount(*row) for row in rows]


async def find_steps(
    connection: Connection,
    traffic_filter: TrafficFilter,
    time: TimeRange,
    *,
    cost_picousd_min: int | None,
    limit: int | None = None,
    hours: Sequence[int] = (),
) -> list[tuple[int, int]]:
    """The newest with calls, each with its number of records. `cost_picousd_min`: only those where
    a call cost at least this. `hours` (their first steps): only searches these."""
    steps = [first + step for first in hours for step in range(STEPS_PER_HOUR)]
    rows = await read(
        connection,
        CALLS if traffic_filter.names_a_tenant else CALLS_OF_ALL,
        steps_of(time),
        {**of_calls(traffic_filter), "step": steps},
        by=("step",),
        add=("records",),
        highest=None if cost_picousd_min is None else ("cost_max", cost_picousd_min),
        newest_first=True,
        limit=limit,
    )
    return [(step, records) for step, records in rows]


async def find_expensive_hours(
    connection: Connection, traffic_filter: TrafficFilter, time: TimeRange, cost_picousd_min: int
) -> list[int]:
    """First steps of hours where any tenant's call cost at least this, newest first."""
    assert not traffic_filter.names_a_tenant
    steps = steps_of(time)
    rows = await read(
        connection,
        CALLS_OF_ALL_BY_HOUR,
        range(steps.start - steps.start % STEPS_PER_HOUR, steps.stop),
        of_calls(traffic_filter),
        by=("step",),
        add=(),
        highest=("cost_max", cost_picousd_min),
        newest_first=True,
    )
    return [row[0] for row in rows]


async def sum_by_backend(connection: Connection, time: TimeRange) -> list[BackendTraffic]:
    names = BackendTraffic.__match_args__
    rows = await read(connection, _of_all(time), steps_of(time), {}, by=names[:3], add=names[3:])
    return [BackendTraffic(*row) for row in rows]


async def count_latencies(connection: Connection, time: TimeRange) -> list[LatencyCount]:
    """By bucket, over all hours that overlap. The whole first day, if its hours are already added
    up."""
    steps = steps_of(time)
    kept_from = await read_time(connection, seconds_ago=LATENCY_HOURS_KEPT_S)
    first = steps.start - steps.start % STEPS_PER_HOUR
    if first * STEP_S < kept_from.timestamp():
        first = steps.start - steps.start % STEPS_PER_DAY
    rows = await read(
        connection,
        LATENCIES,
        range(first, steps.stop),
        {},
        by=("model", "backend", "measure", "rung"),
        add=("requests",),
    )
    return [LatencyCount(*row) for row in rows]


def _is_by_hour(time: TimeRange) -> bool:
    return time.end - time.start > _BY_STEP_S_MAX


def _of_all(time: TimeRange) -> Fact:
    return CALLS_OF_ALL_BY_HOUR if _is_by_hour(time) else CALLS_OF_ALL


def steps_of(time: TimeRange) -> range:
    """Those that overlap. By hour, begins with a full one."""
    start = time.start // STEP_S
    if _is_by_hour(time):
        start -= start % STEPS_PER_HOUR
    return range(start, (time.end - 1) // STEP_S + 1)
