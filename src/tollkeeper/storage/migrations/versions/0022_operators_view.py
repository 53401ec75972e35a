"""Store data for the console: the most expensive call of an hour, and each process's view of its
replicas.

It only adds. Older code counts an hour's calls without their cost: `costed_requests` is then less
than `requests`, and the hour is searched step by step.
"""

from alembic import op

revision = "0022"
down_revision = "0021"
compatible_from = "0021"

_SQL = """
ALTER TABLE traffic_by_hour
    -- The dearest of so many of the calls.
    ADD COLUMN cost_max picousd NOT NULL DEFAULT 0,
    ADD COLUMN costed_requests bigint NOT NULL DEFAULT 0;

-- 'console' where it is one; nothing for a gateway.
ALTER TABLE processes ADD COLUMN kind text;

-- A table of its own: every hold writes the row of its process, which must stay small.
CREATE TABLE replica_reports (
    process_id   uuid PRIMARY KEY REFERENCES processes (id) ON DELETE CASCADE,
    reported_at  timestamptz NOT NULL,
    report       jsonb NOT NULL
) WITH (fillfactor = 50);
"""


def upgrade() -> None:
    op.execute(_SQL)
