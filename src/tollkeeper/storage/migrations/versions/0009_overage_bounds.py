"""Limit how far an organization may be in debt before its calls are stopped until an operator
clears it."""

from alembic import op

revision = "0009"
down_revision = "0008"
compatible_from = "0009"

_SQL = """
ALTER TABLE accounts
    -- NULL: the bound of the settings.
    ADD COLUMN overage_bound picousd CHECK (overage_bound >= 0),
    ADD COLUMN stopped boolean NOT NULL DEFAULT false;
"""


def upgrade() -> None:
    op.execute(_SQL)
