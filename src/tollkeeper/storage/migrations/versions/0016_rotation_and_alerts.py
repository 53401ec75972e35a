"""Store which key has replaced a project key, and the alerts: raised alerts, observations of
processes, and pending deliveries."""

from alembic import op

revision = "0016"
down_revision = "0015"
compatible_from = "0016"

_SQL = """
-- A key is rotated once.
ALTER TABLE project_keys ADD COLUMN replaced_by uuid;

-- What is raised now. A row is written when it is raised, changed with its level, and deleted when
-- it is cleared; each time one delivery is added in the same transaction.
CREATE TABLE alerts (
    key        text PRIMARY KEY,
    kind       text NOT NULL,
    level      integer NOT NULL CHECK (level > 0),
    subject    jsonb NOT NULL,
    detail     text NOT NULL,
    raised_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What a single process sees, such as the health of a backend. It counts until it expires.
CREATE TABLE alert_observations (
    key         text PRIMARY KEY,
    kind        text NOT NULL,
    subject     jsonb NOT NULL,
    detail      text NOT NULL,
    expires_at  timestamptz NOT NULL
);

CREATE TABLE alert_deliveries (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body      text NOT NULL,
    attempts  integer NOT NULL DEFAULT 0,
    due_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX alert_deliveries_by_time ON alert_deliveries (due_at);
"""


def upgrade() -> None:
    op.execute(_SQL)
