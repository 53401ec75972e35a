"""Measures the response time of cost reports over few and over many settled requests."""

import statistics
import time
from collections.abc import Callable
from uuid import UUID, uuid4

import psycopg

# Creates complete rows, like those of the ledger, in one statement.
_SETTLED = """
WITH one AS (
    SELECT k.organization_id, k.project_id, k.id AS key_id FROM project_keys k
    WHERE k.organization_id = %(organization)s LIMIT 1
), made AS (
    INSERT INTO reservations (organization_id, id, project_id, api_key_id, process_id, model, hold,
        price_prompt, price_completion, price_image, price_request, price_cache_read,
        prompt_tokens_max, choices, output_tokens_max, images, month, held_at)
    SELECT organization_id, gen_random_uuid(), project_id, key_id, %(process)s, 'bench/chat', 3,
        1, 1, 0, 0, 0, 1, 1, 2, 0, 202611, now() - (number %% 30) * interval '1 day'
    FROM one, generate_series(1, %(count)s) AS number
    RETURNING organization_id, id, held_at
)
INSERT INTO resolutions (organization_id, reservation_id, kind, hold, settled, released, prompt,
    completion, input_cache_read, image, request, other, estimated, resolved_by, day, resolved_at)
SELECT organization_id, id, 'settled', 3, 3, 0, 1, 2, 0, 0, 0, 0, false, 'bench',
    floor(extract(epoch FROM held_at) / 86400)::integer, held_at
FROM made
"""
_ROLLUP = """
INSERT INTO cost_rollup (organization_id, day, project_id, api_key_id, line_item, amount_picousd)
SELECT d.organization_id, d.day, r.project_id, r.api_key_id, 'bench/chat, ' || l.item, sum(l.amount)
FROM resolutions d JOIN reservations r
  ON r.organization_id = d.organization_id AND r.id = d.reservation_id,
LATERAL (VALUES ('prompt', d.prompt), ('completion', d.completion)) AS l (item, amount)
WHERE d.organization_id = %(organization)s GROUP BY 1, 2, 3, 4, 5
ON CONFLICT (organization_id, day, project_id, api_key_id, line_item)
DO UPDATE SET amount_picousd = excluded.amount_picousd
"""


def fill(conninfo: str, organization_id: str, count: int) -> None:
    parameters = {"organization": UUID(organization_id), "process": uuid4(), "count": count}
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_SETTLED, parameters)
        connection.execute(_ROLLUP, parameters)
        connection.execute("VACUUM ANALYZE")


def report_ms(asks: list[Callable[[], None]], rounds: int = 30) -> list[float]:
    """Returns the median time of each report in milliseconds. The reports are requested in turns."""
    taken: list[list[float]] = [[] for _ in asks]
    for _ in range(rounds):
        for ask, times in zip(asks, taken, strict=True):
            started = time.perf_counter()
            ask()
            times.append(1000 * (time.perf_counter() - started))
    return [statistics.median(times) for times in taken]
