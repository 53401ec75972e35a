"""Contains the SQL for the usage of backends by model and day, and for comparing this usage with a
provider's bill. The sums in the table `backend_usage` are updated when activity records are written
(see `storage/activity`), and are not deleted when old records are dropped."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from decimal import Decimal
from typing import LiteralString

from tollkeeper.storage import activity_partitions
from tollkeeper.storage.database import Connection
from tollkeeper.storage.watched_connection import allow_long_statements

# The time limit for each statement that reads or compares a bill.
_STATEMENT_MINUTES_MAX = 10


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Defines how far two numbers may differ. A difference within the larger of the two limits is
    ignored."""

    # A fraction of the larger of the two numbers. Applies to every figure.
    part: Decimal = Decimal(0)
    # An amount in USD. Applies only to costs.
    usd: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """Contains one figure (for example output tokens) of a day and model, as in the bill (`bill`)
    and as in the ledger (`ledger`). `bill` or `ledger` is None if it has no entry for the day and model.
    In the totals, day and model are None."""

    day: int | None
    model: str | None
    figure: str
    bill: Decimal | None
    ledger: Decimal | None
    # The figure of the bill minus the figure of the ledger.
    difference: Decimal
    differs: bool
    unsettled_requests: int


@dataclass(frozen=True, slots=True)
class CopiedBill:
    first_day: int
    last_day: int
    # The number of distinct pairs of day and model.
    entries: int


@dataclass(frozen=True, slots=True)
class UsageQuery:
    backend: str
    # Days are counted from 1970-01-01. Both days are inclusive.
    first_day: int
    last_day: int
    # The models whose first backend is this backend. The unsettled calls of a process that died have no
    # activity record, so their backend is unknown. These calls count for the first backend of their
    # model.
    models: tuple[str, ...]


async def copy_bill(
    connection: Connection, lines: Iterable[tuple[int, str, list[Decimal]]]
) -> CopiedBill:
    """Copies the bill into a temporary table of this transaction. The bill has at least one
    line."""
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
    """Compares the bill that `copy_bill` wrote in this transaction with the ledger, by day, model
    and figure. The totals come last. `names` maps our model ids to the model names in the bill.
    With `reported`, uses the costs that the backend reported, not the charged costs."""
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


# Reads the usage of a backend in two parts: the sums of activity records and of questions to judges, and
# corrections from the ledger. The corrections are for
# calls that were not resolved when they ended (`unresolved_at_end`): calls that were resolved after their
# activity record was written, and calls without a record. A correction can be negative, so all
# entries of a day and model must be added up. The model of a judge is "judge/" plus the backend's
# name of the model, and each question counts as a request.
#
# `recorded` is true for a call with an activity record, and for a call from before today and before
# the oldest activity partition, because the record of such a call was deleted. A record without a
# backend belongs to a call that was not sent, so no provider charges for that call.
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
