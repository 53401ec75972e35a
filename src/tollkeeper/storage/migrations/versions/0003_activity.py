"""Activity: one row an inference request, in partitions of a UTC day each.

A serving process makes the partitions ahead of time and drops whole days when their time is over.
What no partition takes goes to the default one, so that an insert never fails for want of a day.
"""

from alembic import op

revision = "0003"
down_revision = "0002"

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
    -- All four or none.
    prompt_tokens      bigint,
    completion_tokens  bigint,
    cached_tokens      bigint,
    reasoning_tokens   bigint,
    estimated          boolean NOT NULL,
    hold               picousd,
    cost               picousd,
    -- As it was when the request ended; the ledger knows what became of it.
    settlement         text NOT NULL,
    backend            text,
    replica            text,
    verdicts           jsonb NOT NULL,
    PRIMARY KEY (organization_id, request_id, started_at)
) PARTITION BY RANGE (started_at);

-- The newest of an organization, and the newest of all.
CREATE INDEX activity_of_organization ON activity (organization_id, started_at DESC);
CREATE INDEX activity_in_time ON activity (started_at DESC);

CREATE TABLE activity_default PARTITION OF activity DEFAULT;
"""


def upgrade() -> None:
    op.execute(_SQL)
