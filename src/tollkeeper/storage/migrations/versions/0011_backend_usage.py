"""Store each backend's usage by model and UTC day, for comparison with the provider's bill.

The transaction that writes a batch of activity records maintains these sums, so that they remain
when the records are dropped. The existing records are counted here once.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
compatible_from = "0011"

_SQL = """
CREATE TABLE backend_usage (
    backend             text NOT NULL,
    model               text NOT NULL,
    -- The UTC day on which the call began, counted since 1970-01-01.
    day                 integer NOT NULL,
    -- Calls that the backend may have charged for: settled, or unsettled when they ended.
    requests            bigint NOT NULL,
    -- Of these, those whose cost was not known when they ended. Their cost is not in the sums.
    unsettled_requests  bigint NOT NULL,
    -- Of these, those that were charged by our own count.
    estimated_requests  bigint NOT NULL,
    input_tokens        bigint NOT NULL,
    cached_tokens       bigint NOT NULL,
    cache_write_tokens  bigint NOT NULL,
    output_tokens       bigint NOT NULL,
    cost                picousd NOT NULL,
    -- The sum of the backend's own prices, for the calls in which it reported one.
    reported_cost       picousd NOT NULL,
    PRIMARY KEY (backend, model, day)
);

INSERT INTO backend_usage
SELECT backend, model, floor(extract(epoch FROM started_at) / 86400)::integer, count(*),
    count(*) FILTER (WHERE settlement = 'unsettled'), count(*) FILTER (WHERE estimated),
    coalesce(sum(prompt_tokens), 0), coalesce(sum(cached_tokens), 0),
    coalesce(sum(cache_write_tokens), 0), coalesce(sum(completion_tokens), 0),
    coalesce(sum(cost), 0), coalesce(sum(reported_cost), 0)
FROM activity WHERE backend IS NOT NULL AND settlement IN ('settled', 'unsettled')
GROUP BY 1, 2, 3;
"""


def upgrade() -> None:
    op.execute(_SQL)
