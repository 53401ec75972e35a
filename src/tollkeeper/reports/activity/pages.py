"""Pages of filtered activity records. Each query reads at most `read_max` matching records, and
returns at most `limit` rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.views import ActivityEntry, Position, Sort, SortKey
from tollkeeper.database.database import Connection
from tollkeeper.reports.activity.store import entry_of_row, select_entries
from tollkeeper.reports.sums import filters, of_calls
from tollkeeper.reports.traffic.rule import STEP_S, TimeRange, TrafficFilter

# By `_first_entries`.
_COLUMNS_ADDED = 3


@dataclass(frozen=True, slots=True)
class FoundRecords:
    entries: list[ActivityEntry]
    # Matching ones that were read, and the position of the oldest.
    records: int
    oldest: Position | None


async def find_in_steps(
    connection: Connection,
    steps: Sequence[int],
    traffic_filter: TrafficFilter,
    *,
    cost_picousd_min: int | None,
    before: Position | None,
    end: int,
    sort: Sort | None,
    read_max: int,
    limit: int,
) -> FoundRecords:
    """`steps` are five-minute intervals since 1970. Reads the newest `read_max` matching records
    before the position `before` and the time `end` (Unix seconds), and returns the first `limit` in
    the order `sort`; None means newest first."""
    condition, values = _conditions(traffic_filter, cost_picousd_min)
    if before is not None:
        condition += _BEFORE
    cursor = await connection.execute(
        _first_entries(_IN_STEPS.format(condition=condition), sort),
        {
            **values,
            **_position(before),
            "steps": list(steps),
            "step_s": STEP_S,
            "until": end,
            "read_max": read_max,
            "limit": limit,
        },
        prepare=False,
    )
    return _found(await cursor.fetchall())


_BEFORE: LiteralString = """
    AND (started_at, request_id)
        < (to_timestamp(%(before_ms)s::bigint / 1000.0), %(before_id)s::uuid)
"""
# One index search per step; reads nothing between them.
_IN_STEPS: LiteralString = """
    SELECT found.* FROM unnest(%(steps)s::bigint[]) AS s (step) CROSS JOIN LATERAL (
        SELECT * FROM activity r
        WHERE started_at >= to_timestamp(s.step * %(step_s)s)
          AND started_at < to_timestamp((s.step + 1) * %(step_s)s)
          AND started_at < to_timestamp(%(until)s) AND {condition}
        ORDER BY started_at DESC, request_id DESC LIMIT %(read_max)s
    ) found ORDER BY started_at DESC, request_id DESC LIMIT %(read_max)s
"""


async def find_judged(
    connection: Connection,
    organization_id: OrganizationId,
    policy_id: str,
    time: TimeRange,
    *,
    matched_only: bool,
    before: Position | None,
    limit: int,
) -> list[Position]:
    """Start time and request id of the newest calls that began in `time`, before the position
    `before`, and have the policy's verdict. `matched_only`: only those it matched."""
    statement = _FIND_JUDGED.format(
        matched="AND matched" if matched_only else "", before="" if before is None else _BEFORE
    )
    cursor = await connection.execute(
        statement,
        {
            **_position(before),
            "organization": organization_id,
            "policy": policy_id,
            "start": time.start,
            "end": time.end,
            "limit": limit,
        },
        prepare=False,
    )
    return [Position(*row) for row in await cursor.fetchall()]


# The limits on `judged_at` avoid other days' partitions: policies judge soon. DISTINCT, because
# both request and answer may have been judged.
_FIND_JUDGED: LiteralString = """
    SELECT DISTINCT ON (started_at, request_id)
        (extract(epoch FROM started_at) * 1000)::bigint, request_id
    FROM policy_verdicts
    WHERE organization_id = %(organization)s AND policy_id = %(policy)s {matched}
      AND started_at >= to_timestamp(%(start)s) AND started_at < to_timestamp(%(end)s)
      AND judged_at >= to_timestamp(%(start)s) - interval '1 hour'
      AND judged_at < to_timestamp(%(end)s) + interval '1 day'
      {before}
    ORDER BY started_at DESC, request_id DESC LIMIT %(limit)s
"""


async def find_at(
    connection: Connection,
    organization_id: OrganizationId,
    positions: Sequence[Position],
    traffic_filter: TrafficFilter,
    *,
    cost_picousd_min: int | None,
    sort: Sort | None,
    limit: int,
) -> FoundRecords:
    """The first `limit` matching ones in the order `sort`; None means newest first."""
    condition, values = _conditions(traffic_filter, cost_picousd_min)
    cursor = await connection.execute(
        _first_entries(_AT.format(condition=condition), sort),
        {
            **values,
            "owner": organization_id,
            "times": [position.started_at_ms for position in positions],
            "requests": [position.request_id for position in positions],
            "limit": limit,
        },
        prepare=False,
    )
    return _found(await cursor.fetchall())


_AT: LiteralString = """
    SELECT found.* FROM unnest(%(times)s::bigint[], %(requests)s::uuid[]) AS p (at_ms, id)
    CROSS JOIN LATERAL (
        SELECT * FROM activity r
        WHERE organization_id = %(owner)s AND request_id = p.id
          AND started_at = to_timestamp(p.at_ms / 1000.0) AND {condition}
    ) found
"""


# A settled call's record, or one without a hold, has the final cost. Any other call's is in the
# ledger: it may have been resolved after its record was written.
_COST: LiteralString = """
    CASE WHEN settlement IN ('settled', 'none') THEN cost ELSE coalesce((
        SELECT d.settled + coalesce(o.amount, 0) FROM resolutions d
        LEFT JOIN overages o
          ON o.organization_id = d.organization_id AND o.reservation_id = d.reservation_id
        WHERE d.organization_id = read.organization_id AND d.reservation_id = read.request_id
    ), cost) END
"""
_SORT_VALUES: Mapping[SortKey, LiteralString] = {
    SortKey.TIME: "started_at",
    SortKey.FIRST_BYTE: "first_piece_ms",
    SortKey.DURATION: "duration_ms",
    SortKey.TOKENS: "prompt_tokens + completion_tokens",
    SortKey.COST: _COST,
}
# Adds the number of all records and the position of the oldest.
_IN_ORDER: LiteralString = """
    SELECT *, count(*) OVER newest AS records, last_value(started_at) OVER newest AS oldest_at,
        last_value(request_id) OVER newest AS oldest_id,
        row_number() OVER (
            ORDER BY {value} {direction} NULLS LAST, started_at DESC, request_id DESC) AS place
    FROM ({records}) read
    WINDOW newest AS (ORDER BY started_at DESC, request_id DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
    ORDER BY place LIMIT %(limit)s
"""


def _first_entries(records: LiteralString, sort: Sort | None) -> LiteralString:
    """The last three columns are those of `FoundRecords`."""
    sort = sort or Sort(SortKey.TIME)
    return select_entries(
        _IN_ORDER.format(
            value=_SORT_VALUES[sort.key],
            direction="ASC" if sort.ascending else "DESC",
            records=records,
        ),
        further_columns=", a.records, (extract(epoch FROM a.oldest_at) * 1000)::bigint, a.oldest_id",
        order="a.place",
    )


def _found(rows: Sequence[tuple[Any, ...]]) -> FoundRecords:
    if not rows:
        return FoundRecords([], 0, None)
    records, *oldest = rows[0][-_COLUMNS_ADDED:]
    entries = [entry_of_row(row[:-_COLUMNS_ADDED]) for row in rows]
    return FoundRecords(entries, records, Position(*oldest))


def _conditions(
    traffic_filter: TrafficFilter, cost_picousd_min: int | None
) -> tuple[LiteralString, dict[str, object]]:
    condition, values = filters(of_calls(traffic_filter))
    if cost_picousd_min is not None:
        condition += " AND cost >= %(cost)s"
    return condition, {**values, "cost": cost_picousd_min}


def _position(before: Position | None) -> dict[str, object]:
    return {
        "before_ms": None if before is None else before.started_at_ms,
        "before_id": None if before is None else before.request_id,
    }
