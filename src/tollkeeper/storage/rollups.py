"""Contains the SQL that maintains the roll-ups (sums for reports) of activity records and of
verdicts (the results of policies). `ROLL_UP_ACTIVITY` and `ROLL_UP_VERDICTS` are the last part of
the statements that insert the records. Both read from `fresh`, the rows that were really inserted,
so that a record that is written again is not counted twice."""

from typing import LiteralString

from tollkeeper.domain.traffic import STEP_S, STEPS_PER_DAY
from tollkeeper.storage.database import Connection

_DAY_S = 86_400


def added(*columns: LiteralString) -> LiteralString:
    """Returns the assignments of an upsert that add the new row's values to the existing row
    `t`."""
    return ", ".join([column + " = t." + column + " + excluded." + column for column in columns])


# The columns with the tokens and costs of a backend or of a judge (a model that answers policy
# questions).
USAGE_SUMS: tuple[LiteralString, ...] = (
    *("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens"),
    *("cost", "reported_cost"),
)
_CALLS: LiteralString = added("requests", "prompt_tokens", "completion_tokens", "cached_tokens")
# The assignments for the roll-ups by backend.
_CALLS_OF_BACKENDS: LiteralString = (
    _CALLS
    + ", "
    + added("duration_ms", "first_pieces", "first_piece_ms", "streamed_tokens", "streaming_ms")
)
# A step is five minutes. 300 is `STEP_S`, 12 is `STEPS_PER_HOUR`, and 1.1 is `BUCKET_RATIO` in
# `domain.traffic`. Each roll-up writes its rows in a fixed order. The condition
# `count(*) ... >= 0` is always true; it makes a roll-up wait for the previous roll-up. So two
# processes that write the same rows do not deadlock. Latencies are counted by hour, under the first
# step of the hour. `rung` is the number of a latency bucket. Overhead is in microseconds, all other
# latencies are in milliseconds.
ROLL_UP_ACTIVITY: LiteralString = (
    """
    , by_tenant AS (
        INSERT INTO traffic AS t (organization_id, step, project_id, api_key_id, model, status,
            requests, prompt_tokens, completion_tokens, cached_tokens, cost_max, repeated)
        SELECT organization_id, floor(extract(epoch FROM started_at) / 300)::integer AS step,
            project_id, api_key_id, model, status, sum(requests), coalesce(sum(prompt_tokens), 0),
            coalesce(sum(completion_tokens), 0), coalesce(sum(cached_tokens), 0),
            coalesce(max(cost), 0), sum(requests - 1)
        FROM fresh GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
        ON CONFLICT (organization_id, step, project_id, api_key_id, model, status)
        DO UPDATE SET """
    + _CALLS
    + """, cost_max = greatest(t.cost_max, excluded.cost_max),
            repeated = t.repeated + excluded.repeated
        RETURNING 1
    ), of_backends AS (
        SELECT floor(extract(epoch FROM started_at) / 300)::integer AS step, model,
            coalesce(backend, '') AS backend, coalesce(replica, '') AS replica, status,
            sum(requests) AS requests, coalesce(sum(prompt_tokens), 0) AS prompt_tokens,
            coalesce(sum(completion_tokens), 0) AS completion_tokens,
            coalesce(sum(cached_tokens), 0) AS cached_tokens,
            sum(duration_ms * requests) AS duration_ms,
            count(first_piece_ms) AS first_pieces, coalesce(sum(first_piece_ms), 0) AS first_piece_ms,
            coalesce(sum(completion_tokens) FILTER (WHERE streamed
                AND duration_ms > first_piece_ms), 0) AS streamed_tokens,
            coalesce(sum(duration_ms - first_piece_ms) FILTER (WHERE streamed
                AND duration_ms > first_piece_ms AND completion_tokens > 0), 0) AS streaming_ms,
            coalesce(max(cost), 0) AS cost_max, sum(requests - 1) AS repeated
        FROM fresh WHERE (SELECT count(*) FROM by_tenant) >= 0
        GROUP BY 1, 2, 3, 4, 5
    ), by_backend AS (
        INSERT INTO traffic_by_backend AS t (step, model, backend, replica, status, requests,
            prompt_tokens, completion_tokens, cached_tokens, duration_ms, first_pieces,
            first_piece_ms, streamed_tokens, streaming_ms, cost_max, repeated)
        SELECT * FROM of_backends ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT (step, model, backend, replica, status)
        DO UPDATE SET """
    + _CALLS_OF_BACKENDS
    + """,
            cost_max = greatest(t.cost_max, excluded.cost_max),
            repeated = t.repeated + excluded.repeated
        RETURNING 1
    ), by_hour AS (
        INSERT INTO traffic_by_hour AS t (step, model, backend, replica, status, requests,
            prompt_tokens, completion_tokens, cached_tokens, duration_ms, first_pieces,
            first_piece_ms, streamed_tokens, streaming_ms, cost_max, costed_requests)
        SELECT step - step %% 12, model, backend, replica, status, sum(requests), sum(prompt_tokens),
            sum(completion_tokens), sum(cached_tokens), sum(duration_ms), sum(first_pieces),
            sum(first_piece_ms), sum(streamed_tokens), sum(streaming_ms), max(cost_max),
            sum(requests)
        FROM of_backends WHERE (SELECT count(*) FROM by_backend) >= 0
        GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT (step, model, backend, replica, status)
        DO UPDATE SET """
    + _CALLS_OF_BACKENDS
    + """,
            cost_max = greatest(t.cost_max, excluded.cost_max),
            costed_requests = t.costed_requests + excluded.costed_requests
        RETURNING 1
    ), for_bills AS (
        INSERT INTO backend_usage AS t (backend, model, day, requests, unsettled_requests,
            estimated_requests, input_tokens, cached_tokens, cache_write_tokens, output_tokens,
            cost, reported_cost)
        SELECT backend, model, floor(extract(epoch FROM started_at) / 86400)::integer, count(*),
            count(*) FILTER (WHERE settlement = 'unsettled'), count(*) FILTER (WHERE estimated),
            coalesce(sum(prompt_tokens), 0), coalesce(sum(cached_tokens), 0),
            coalesce(sum(cache_write_tokens), 0), coalesce(sum(completion_tokens), 0),
            coalesce(sum(cost), 0), coalesce(sum(reported_cost), 0)
        FROM fresh WHERE backend IS NOT NULL
            -- If a settled call has no usage, only its verdicts were charged.
            AND (settlement = 'unsettled' OR settlement = 'settled' AND prompt_tokens IS NOT NULL)
            AND (SELECT count(*) FROM by_hour) >= 0
        GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        ON CONFLICT (backend, model, day)
        DO UPDATE SET """
    + added("requests", "unsettled_requests", "estimated_requests", *USAGE_SUMS)
    + """
        RETURNING 1
    )
    INSERT INTO traffic_latency AS t (step, model, backend, measure, rung, requests)
    SELECT floor(extract(epoch FROM started_at) / 3600)::integer * 12 AS step, model,
        coalesce(backend, '') AS backend, measure,
        ceil(ln(greatest(amount, 1)::float8) / ln(1.1::float8))::integer AS rung,
        sum(requests)
    FROM fresh, LATERAL (VALUES ('duration', duration_ms), ('first_piece', first_piece_ms),
        ('overhead', overhead_us)) AS taken (measure, amount)
    WHERE amount IS NOT NULL AND (SELECT count(*) FROM for_bills) >= 0
    GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (step, model, backend, measure, rung)
    DO UPDATE SET requests = t.requests + excluded.requests
"""
)
# A verdict without a probability is counted under the probability -1.
ROLL_UP_VERDICTS: LiteralString = """
    INSERT INTO verdict_counts AS t (organization_id, policy_id, day, version, direction,
        probability_basis_points, asked, matched)
    SELECT organization_id, policy_id, floor(extract(epoch FROM judged_at) / 86400)::integer AS day,
        version, direction, coalesce(probability_basis_points, -1) AS probability, count(*),
        count(*) FILTER (WHERE matched)
    FROM fresh GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (organization_id, policy_id, day, version, direction, probability_basis_points)
    DO UPDATE SET asked = t.asked + excluded.asked, matched = t.matched + excluded.matched
"""


async def delete_before(connection: Connection, unix_s: int) -> None:
    """Deletes the rows of the roll-ups of traffic, latencies and verdicts that are older than the
    given time. The rows of `backend_usage` stay."""
    for statement in _DELETE_STEPS:
        await connection.execute(statement, (unix_s // STEP_S,))
    await connection.execute("DELETE FROM verdict_counts WHERE day < %s", (unix_s // _DAY_S,))


_DELETE_STEPS: tuple[LiteralString, ...] = (
    "DELETE FROM traffic WHERE step < %s",
    "DELETE FROM traffic_by_backend WHERE step < %s",
    "DELETE FROM traffic_by_hour WHERE step < %s",
    "DELETE FROM traffic_latency WHERE step < %s",
)


async def sum_latencies_by_day(connection: Connection, unix_s: int) -> None:
    """Replaces the hourly latency counts of the days before the day of `unix_s` by daily counts, so
    that reports about weeks read few rows. The step of a daily count is the first step of its day.
    If hourly rows are later written for such a day, the next run adds them to the daily counts."""
    await connection.execute(
        _SUM_LATENCIES_BY_DAY, {"end": unix_s // _DAY_S * STEPS_PER_DAY, "day": STEPS_PER_DAY}
    )


_SUM_LATENCIES_BY_DAY: LiteralString = """
    WITH taken AS (
        DELETE FROM traffic_latency WHERE step < %(end)s AND step %% %(day)s <> 0
        RETURNING step, model, backend, measure, rung, requests
    )
    INSERT INTO traffic_latency AS t (step, model, backend, measure, rung, requests)
    SELECT step - step %% %(day)s, model, backend, measure, rung, sum(requests) FROM taken
    GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (step, model, backend, measure, rung)
    DO UPDATE SET requests = t.requests + excluded.requests
"""
