"""SQL of what backends were used for, by model and day. Activity records are summed up there when
they are written (storage/activity), and the sums stay when the records are dropped."""

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import date
from typing import LiteralString

from tollkeeper.storage import activity_partitions
from tollkeeper.storage.database import Connection


@dataclass(frozen=True, slots=True)
class BackendUsage:
    """What the books have of one model of a backend on one UTC day."""

    day: int
    model: str
    requests: int
    unsettled_requests: int
    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    cost_picousd: int
    reported_cost_picousd: int


@dataclass(frozen=True, slots=True)
class UsageQuery:
    backend: str
    # Both days are included.
    first_day: int
    last_day: int
    # The models whose first backend it is. An unsettled call of these models that has no activity
    # record, because its process died, counts as one of this backend.
    models: tuple[str, ...]


async def stream_usage(connection: Connection, query: UsageQuery) -> AsyncIterator[BackendUsage]:
    """The sums of activity records, and what the ledger knows better about unsettled calls: those
    that were resolved since, and those that have no activity record. Of the latter, numbers can be
    negative: all entries of a day and model are to be added up."""
    kept = await activity_partitions.find_days(connection)
    parameters = {
        **asdict(query),
        "models": list(query.models),
        "kept_from": kept[0] if kept else date.min,
    }
    cursor = await connection.execute(_USAGE, parameters, prepare=False)
    async for row in cursor:
        yield BackendUsage(*row)


# A call from before the oldest partition of records had a record that was dropped by its age, unless all
# partitions are of days to come. A record
# without a backend is that of a call that was not sent: no provider charges for it.
_USAGE: LiteralString = """
    WITH marked AS (
        SELECT r.model, d.kind, d.settled + coalesce(o.amount, 0) AS cost, a.backend, a.request_id,
            floor(extract(epoch FROM coalesce(a.started_at, r.held_at)) / 86400)::integer AS day,
            a.request_id IS NOT NULL
                OR (r.held_at AT TIME ZONE 'UTC')::date
                    < least(%(kept_from)s::date, (now() AT TIME ZONE 'UTC')::date) AS recorded
        FROM unsettled_marks m
        JOIN reservations r ON r.organization_id = m.organization_id AND r.id = m.reservation_id
        LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
        LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
        LEFT JOIN activity a ON a.organization_id = r.organization_id AND a.request_id = r.id
        WHERE coalesce(a.settlement, 'unsettled') = 'unsettled'
          -- A call may begin a day before its hold, or seem to by another clock.
          AND r.held_at >= to_timestamp((%(first_day)s::bigint - 1) * 86400)
          AND r.held_at < to_timestamp((%(last_day)s::bigint + 2) * 86400)
    )
    SELECT day, model, requests, unsettled_requests, input_tokens, cached_tokens,
        cache_write_tokens, output_tokens, cost, reported_cost
    FROM backend_usage WHERE backend = %(backend)s AND day BETWEEN %(first_day)s AND %(last_day)s
    UNION ALL
    SELECT day, model,
        count(*) FILTER (WHERE NOT recorded AND kind IS DISTINCT FROM 'released')
            - count(*) FILTER (WHERE recorded AND kind = 'released'),
        count(*) FILTER (WHERE NOT recorded AND kind IS NULL)
            - count(*) FILTER (WHERE recorded AND kind IS NOT NULL),
        0, 0, 0, 0, coalesce(sum(cost), 0), 0
    FROM marked
    WHERE (backend = %(backend)s OR request_id IS NULL AND model = ANY (%(models)s))
      AND day BETWEEN %(first_day)s AND %(last_day)s
    GROUP BY day, model
"""


async def find_backends(connection: Connection) -> list[str]:
    """The backends that were ever used."""
    cursor = await connection.execute(
        "SELECT DISTINCT backend FROM backend_usage ORDER BY backend", prepare=False
    )
    return [row[0] for row in await cursor.fetchall()]
