"""Adds up calls, questions to judges and verdicts; `sums` reads that, and money, which settlements
add up (`resolutions`). `ROLL_UP_ACTIVITY` and `ROLL_UP_VERDICTS` end the statements that insert the
records, and read `fresh`, what was really inserted, so that repeats aren't counted twice."""

from collections.abc import Sequence
from typing import LiteralString
from uuid import UUID

import msgspec

from tollkeeper.core.access import OrganizationId
from tollkeeper.database.database import Connection
from tollkeeper.reports.traffic.rule import STEP_S, STEPS_PER_DAY

_DAY_S = 86_400
# Organization, project and key in sums over all organizations.
EVERYBODY = UUID(int=0)


def _add(*columns: LiteralString) -> LiteralString:
    return ", ".join([column + " = t." + column + " + excluded." + column for column in columns])


_ADD_USAGE: LiteralString = (
    """
    ON CONFLICT (organization_id, day, backend, model)
    DO UPDATE SET """
    + _add("requests", "unsettled_requests", "input_tokens", "cached_tokens")
    + ", "
    + _add("cache_write_tokens", "output_tokens", "cost", "reported_cost")
)
# A step is five minutes. 300 is `STEP_S`, 12 `STEPS_PER_HOUR`, 1.1 `BUCKET_RATIO` in
# `domain.traffic`. Rows are written in a fixed order, and `count(*) ... >= 0`, always true, makes a
# table wait for the one before, so two processes don't deadlock. Latencies count by hour, under its
# first step: overhead in microseconds, all others in milliseconds.
ROLL_UP_ACTIVITY: LiteralString = (
    """
    , counted AS (
        INSERT INTO traffic AS t (organization_id, steps, step, project_id, api_key_id, model, backend,
            replica, status, requests, repeated, prompt_tokens, completion_tokens, cached_tokens,
            duration_ms, first_pieces, first_piece_ms, streamed_tokens, streaming_ms, cost_max)
        SELECT coalesce(organization_id, nobody), CASE grouping(step) WHEN 0 THEN 1 ELSE 12 END,
            coalesce(step, hour), coalesce(project_id, nobody), coalesce(api_key_id, nobody), model,
            coalesce(backend, ''), coalesce(replica, ''), status, sum(requests), sum(requests - 1),
            coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0),
            coalesce(sum(cached_tokens), 0), sum(duration_ms * requests),
            count(first_piece_ms), coalesce(sum(first_piece_ms), 0),
            coalesce(sum(completion_tokens) FILTER (WHERE streamed
                AND duration_ms > first_piece_ms), 0),
            coalesce(sum(duration_ms - first_piece_ms) FILTER (WHERE streamed
                AND duration_ms > first_piece_ms AND completion_tokens > 0), 0),
            coalesce(max(cost), 0)
        FROM (
            SELECT organization_id, floor(extract(epoch FROM started_at) / 300)::integer AS step,
                floor(extract(epoch FROM started_at) / 3600)::integer * 12 AS hour, project_id,
                api_key_id, model, coalesce(backend, '') AS backend, coalesce(replica, '') AS replica,
                status, requests, prompt_tokens, completion_tokens, cached_tokens, duration_ms,
                first_piece_ms, streamed, cost, '00000000-0000-0000-0000-000000000000'::uuid AS nobody
            FROM fresh
        ) one
        GROUP BY model, status, nobody, GROUPING SETS (
            (organization_id, step, project_id, api_key_id), (step, backend, replica),
            (hour, backend, replica))
        -- The rows that all processes share come last, so that they are locked for a short time.
        ORDER BY 1 DESC, 2, 3, 4, 5, 6, 7, 8, 9
        ON CONFLICT (organization_id, steps, step, project_id, api_key_id, model, backend, replica,
            status)
        DO UPDATE SET """
    + _add("requests", "repeated", "prompt_tokens", "completion_tokens", "cached_tokens")
    + ", "
    + _add("duration_ms", "first_pieces", "first_piece_ms", "streamed_tokens", "streaming_ms")
    + """, cost_max = greatest(t.cost_max, excluded.cost_max)
        RETURNING 1
    ), for_bills AS (
        INSERT INTO backend_usage AS t (organization_id, day, backend, model, requests,
            unsettled_requests, input_tokens, cached_tokens, cache_write_tokens, output_tokens, cost,
            reported_cost)
        SELECT '00000000-0000-0000-0000-000000000000'::uuid,
            floor(extract(epoch FROM started_at) / 86400)::integer, backend, model, count(*),
            count(*) FILTER (WHERE settlement = 'unsettled'),
            coalesce(sum(prompt_tokens), 0), coalesce(sum(cached_tokens), 0),
            coalesce(sum(cache_write_tokens), 0), coalesce(sum(completion_tokens), 0),
            coalesce(sum(cost), 0), coalesce(sum(reported_cost), 0)
        FROM fresh WHERE backend IS NOT NULL
            AND (settlement = 'unsettled' OR settlement = 'settled' AND prompt_tokens IS NOT NULL)
            AND (SELECT count(*) FROM counted) >= 0
        GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    """
    + _ADD_USAGE
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
# Without a probability, it's -1.
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


class JudgeUsage(msgspec.Struct):
    """Sums of an organization, day, backend and model, or a part that isn't written yet."""

    organization_id: OrganizationId
    # Since 1970-01-01.
    day: int
    backend: str
    # As the backend calls it.
    model: str
    questions: int = 0
    # The backend reported no tokens for these.
    unreported_questions: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    cost_picousd: int = 0
    reported_cost_picousd: int = 0

    def add(self, other: "JudgeUsage") -> None:
        for name in self.__struct_fields__[4:]:
            setattr(self, name, getattr(self, name) + getattr(other, name))


async def add_judge_usage(connection: Connection, used: Sequence[JudgeUsage]) -> None:
    columns = zip(*map(msgspec.structs.astuple, used), strict=True)
    await connection.execute(_ADD_JUDGE_USAGE, [list(column) for column in columns], prepare=False)


_ADD_JUDGE_USAGE: LiteralString = (
    """
    INSERT INTO backend_usage AS t (organization_id, day, backend, model, requests,
        unsettled_requests, input_tokens, cached_tokens, cache_write_tokens, output_tokens, cost,
        reported_cost)
    SELECT organization_id, day, backend, 'judge/' || model, questions, unreported, input, cached,
        written, output, cost, reported
    FROM unnest(%s::uuid[], %s::integer[], %s::text[], %s::text[], %s::bigint[], %s::bigint[],
        %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::numeric[], %s::numeric[])
        AS used (organization_id, day, backend, model, questions, unreported, input, cached, written,
            output, cost, reported)
    ORDER BY 1, 2, 3, 4
    """
    + _ADD_USAGE
)


async def delete_before(connection: Connection, unix_s: int) -> None:
    """What's older than the records, except `backend_usage`."""
    await connection.execute("DELETE FROM traffic WHERE step < %s", (unix_s // STEP_S,))
    await connection.execute("DELETE FROM traffic_latency WHERE step < %s", (unix_s // STEP_S,))
    await connection.execute("DELETE FROM verdict_counts WHERE day < %s", (unix_s // _DAY_S,))


async def sum_latencies_by_day(connection: Connection, unix_s: int) -> None:
    """Of the days before `unix_s`'s, so reports about weeks read few rows. A day's count is at its
    first step. The next run adds what's written later."""
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
