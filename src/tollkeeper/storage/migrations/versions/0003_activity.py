"""Create activity: one row for each inference request, with one partition for each UTC day.

Workers create the partitions in advance and drop them after the retention time. Rows of a day
without a partition go to the default one, so that no insert fails.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
compatible_from = "0003"

_SQL = """
CREATE TABLE activity (
    organization_id    uuid NOT NULL,
    request_id         uuid NOT NULL,
    started_at         timestamptz NOT NULL,
    project_id         uuid NOT NULL,
    api_key_id         uuid NOT NULL,
    operation          text NOT NULL,
    model              text NOT NULL,
    streamed           boolean NOT NULL,
    duration_ms        bigint NOT NULL,
    first_piece_ms     bigint,
    status             integer NOT NULL,
    error_code         text,
    finish             text,
    -- All four token counts are NULL, or none of them is.
    prompt_tokens      bigint,
    completion_tokens  bigint,
    cached_tokens      bigint,
    reasoning_tokens   bigint,
    estimated          boolean NOT NULL,
    hold               picousd,
    cost               picousd,
    -- The state when the request ended. The ledger has the current one.
    settlement         text NOT NULL,
    backend            text,
    replica            text,
    verdicts           jsonb NOT NULL,
    PRIMARY KEY (organization_id, request_id, started_at)
) PARTITION BY RANGE (started_at);

-- For lists of the newest rows of one organization, and of all.
CREATE INDEX activity_of_organization ON activity (organization_id, started_at DESC);
CREATE INDEX activity_in_time ON activity (started_at DESC);

CREATE TABLE activity_default PARTITION OF activity DEFAULT;
"""


def upgrade() -> None:
    op.execute(_SQL)
