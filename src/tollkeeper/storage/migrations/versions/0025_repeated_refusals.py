"""Let one record stand for many repeated rejections, and store ended console sessions.

It only adds. Older code writes one record for each request, which is the default.
"""

from alembic import op

revision = "0025"
down_revision = "0024"
compatible_from = "0021"

_SQL = """
-- How many requests the record stands for: more than one only for refusals.
ALTER TABLE activity ADD COLUMN requests bigint NOT NULL DEFAULT 1;
-- How many of the requests have no record of their own.
ALTER TABLE traffic ADD COLUMN repeated bigint NOT NULL DEFAULT 0;
ALTER TABLE traffic_by_backend ADD COLUMN repeated bigint NOT NULL DEFAULT 0;

-- Sessions that an operator ended by signing out, until they would have expired.
CREATE TABLE ended_console_sessions (
    id          bytea PRIMARY KEY,
    expires_at  timestamptz NOT NULL
);
"""


def upgrade() -> None:
    op.execute(_SQL)
