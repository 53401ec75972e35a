"""Store which code works with the schema, and which code each process runs, so that versions can
overlap.

Code before this migration rejects any newer schema, so none of it is compatible.
"""

from alembic import op

revision = "0019"
down_revision = "0017"
compatible_from = "0019"

_SQL = """
-- A row for each migration that was applied: the oldest code that works with the schema after it.
CREATE TABLE schema_revisions (
    revision         text PRIMARY KEY,
    compatible_from  text NOT NULL,
    applied_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (compatible_from <= revision)
);

-- What a process has told of itself; nothing where older code wrote the row.
ALTER TABLE processes
    ADD COLUMN code_revision text,
    ADD COLUMN host text,
    ADD COLUMN pid integer;
"""


def upgrade() -> None:
    op.execute(_SQL)
