"""Backends' usage by model and day, and how it compares with a bill. `reports/activity/store` updates the
sums when it writes records; they outlive them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from decimal import Decimal
from typing import LiteralString

from tollkeeper.database.database import Connection
from tollkeeper.database.watched_connection import allow_long_statements
from tollkeeper.reports.activity import partitions as activity_partitions

# For reading or comparing a bill.
_STATEMENT_MINUTES_MAX = 10


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A difference within the larger of both limits is ignored."""

    # Of the larger number. For every figure.
    part: Decimal = Decimal(0)
    # Only for costs.
    usd: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """None if the bill or the ledger has no entry for the day and model. The totals have no day and
    model."""

    day: int | None
    model: str | None
    figure: str
    bill: Decimal | None
    ledger: Decimal | None
    # Bill minus ledger.
    difference: Decimal
    differs: bool
    unsettled_requests: int


@dataclass(frozen=True, slots=True)
class CopiedBill:
    first_day: int
    last_day: int
    # Distinct pairs of day and model.
    entries: int


@dataclass(frozen=True, slots=True)
class UsageQuery:
    backend: str
    # Since 1970-01-01, both inclusive.
    first_day: int
    last_day: int
    # Those with this backend first: a dead process's unsettled calls have no record, so nobody
    # knows their backend, and they count for their model's first.
    models: tuple[str, ...]


async def copy_bill(
    connection: Connection, lines: Iterable[tuple[int, str, list[Decimal]]]
) -> CopiedBill:
    """Into a temporary table of this transaction. At least one line."""
    await allow_long_statements(connection, minutes=_STATEMENT_MINUTES_MAX)
    await connection.execute(
        "CREATE TEMPORARY TABLE bill (day integer, model text, amounts numeric[]) ON COMMIT DROP"
    )
    async with connection.cursor() as cursor:
        async with cursor.copy("COPY bill FROM STDIN") as copy:
            for line in lines:
                await copy.write_row(line)
        await cursor.execute(
            "SELECT min(day), max(day), count(DISTINCT (day, model)) FROM bill", prepare=False
        )
        row = await cursor.fetchone()
    assert row is not None
    return CopiedBill(*row)


async def compare_bill(
    connection: Connection,
    query: UsageQuery,
    *,
    figures: Sequence[str],
    names: Mapping[str, str],
    tolerance: Tolerance,
    reported: bool,
) -> list[ComparedFigure]:
    """With `copy_bill`'s in this transaction, totals last. `names` maps our model ids to the
    bill's. `reported` uses the costs that the backend reported, not the charged ones."""
    stored_days = await activity_partitions.find_days(connection)
    parameters = {
        **asdict(query),
        **asdict(tolerance),
        "models": list(query.models),
        "kept_from": stored_days[0] if stored_days else date.min,
        "figures": [str(figure) for figure in figures],
        "ours": list(names),
        "theirs": list(names.values()),
        "reported": reported,
    }
    cursor = await connection.execute(_COMPARISON, parameters, prepare=False)
    return [
        ComparedFigure(*row[:3], *(text and Decimal(text) for text in row[3:6]), *row[6:])
        for row in await cursor.fetchall()
    ]


# Sums of records and of questions to judges, plus corrections from the ledger for calls that
# weren't resolved when they ended (`unresolved_at_end`): resolved after their record, or without
# one. A correction can be negative, so add up all entries of a day and model. A judge's model is
# "judge/" plus the backend's name, each question a request. `recorded` also counts calls from
# before today and the oldest partition: their records were deleted. No backend in a record means it
# was never sent, so nobody charges for it.
_USAGE: LiteralString = """
    WITH unresolved_at_end AS (
        SELECT organization_id, reservation_id AS id FROM unsettled_marks
        UNION SELECT organization_id, request_id FROM activity
        WHERE settlement = 'unsettled' AND backend = %(backend)s
          AND started_at >= to_timestamp(%(first_day)s::bigint * 86400)
          AND started_at < to_timestamp((%(last_day)s::bigint + 1) * 86400)
    ), corrected AS (
        SELECT r.model, d.kind, d.settled + coalesce(o.amount, 0) AS cost, a.backend, a.request_id,
            floor(extract(epoch FROM coalesce(a.started_at, r.held_at)) / 86400)::integer AS day,
            a.request_id IS NOT NULL
                OR (r.held_at AT TIME ZONE 'UTC')::date
                    < least(%(kept_from)s::date, (now() AT TIME ZONE 'UTC')::date) AS recorded
        FROM unresolved_at_end JOIN reservations r USING (organization_id, id)
        LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
        LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
        LEFT JOIN activity a ON a.organization_id = r.organization_id AND a.request_id = r.id
        WHERE coalesce(a.settlement, 'unsettled') = 'unsettled'
          -- A call may begin a day before its hold, or seem to because of a wrong clock.
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
    FROM corrected
    WHERE (backend = %(backend)s OR request_id IS NULL AND model = ANY (%(models)s))
      AND day BETWEEN %(first_day)s AND %(last_day)s
    GROUP BY day, model
"""


_COMPARISON: LiteralString = f"""
    WITH usage AS ({_USAGE}), ledger AS (
        SELECT u.day, coalesce(n.theirs, regexp_replace(u.model, '^judge/', '')) AS model,
            sum(u.requests) AS requests,
            sum(u.unsettled_requests)::bigint AS unsettled, sum(u.input_tokens) AS input,
            -- Tokens that were read from a cache and written to it again are in both counts.
            sum(greatest(0, u.input_tokens - u.cached_tokens - u.cache_write_tokens)) AS uncached,
            sum(u.cached_tokens) AS cached, sum(u.cache_write_tokens) AS written,
            sum(u.output_tokens) AS output,
            sum(CASE WHEN %(reported)s THEN u.reported_cost ELSE u.cost END) * 1e-12 AS usd
        FROM usage u
        LEFT JOIN unnest(%(ours)s::text[], %(theirs)s::text[]) AS n (ours, theirs) ON n.ours = u.model
        GROUP BY 1, 2
        -- If all calls of a day and model were released, there is nothing to charge.
        HAVING sum(u.requests) <> 0
    ), booked AS (
        SELECT day, model, figure, amount, unsettled
        FROM ledger, LATERAL (VALUES
            ('requests', requests), ('input_tokens', input), ('uncached_input_tokens', uncached),
            ('cached_input_tokens', cached), ('cache_write_tokens', written),
            ('output_tokens', output), ('cost', usd)
        ) AS figures (figure, amount)
        WHERE figure = ANY (%(figures)s)
    ), billed AS (
        SELECT day, model, figure, sum(amount) AS amount
        FROM bill, unnest(%(figures)s::text[], amounts) AS figures (figure, amount)
        WHERE day BETWEEN %(first_day)s AND %(last_day)s
        GROUP BY day, model, figure
    ), compared AS (
        SELECT day, model, figure, max(unsettled) AS unsettled,
            -- In the totals, the sum of a side without entries is zero, not NULL.
            coalesce(sum(billed.amount), 0 * nullif(grouping(day), 0)) AS bill,
            coalesce(sum(booked.amount), 0 * nullif(grouping(day), 0)) AS ledger
        FROM billed FULL JOIN booked USING (day, model, figure)
        GROUP BY GROUPING SETS ((day, model, figure), (figure))
    )
    SELECT day, model, figure, bill::text, ledger::text,
        (coalesce(bill, 0) - coalesce(ledger, 0))::text,
        bill IS NULL OR ledger IS NULL OR abs(bill - ledger) > greatest(
            CASE figure WHEN 'cost' THEN %(usd)s ELSE 0 END,
            %(part)s * greatest(abs(bill), abs(ledger))
        ),
        coalesce(unsettled, 0)
    FROM compared
    ORDER BY day, model COLLATE "C", array_position(%(figures)s, figure)
"""


async def find_backends(connection: Connection) -> list[str]:
    cursor = await connection.execute(
        "SELECT DISTINCT backend FROM backend_usage ORDER BY backend",
        prepare=False,
    )
    return [row[0] for row in await cursor.fetchall()]
