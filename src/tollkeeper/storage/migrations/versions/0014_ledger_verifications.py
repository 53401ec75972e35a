"""When the whole ledger was verified, and what was found: only the last time is kept."""

from alembic import op

revision = "0014"
down_revision = "0013"
compatible_from = "0014"

_SQL = """
CREATE TABLE ledger_verification (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    verified_at  timestamptz NOT NULL,
    differences  integer NOT NULL CHECK (differences >= 0)
);
"""


def upgrade() -> None:
    op.execute(_SQL)
