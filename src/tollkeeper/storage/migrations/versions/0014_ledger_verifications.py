"""Store the time and result of the last verification of the whole ledger."""

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
