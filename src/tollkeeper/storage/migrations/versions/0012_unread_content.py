"""Store in verdicts the kinds of content that no judge reads, such as images."""

from alembic import op

revision = "0012"
down_revision = "0011"
compatible_from = "0012"

_SQL = """
ALTER TABLE policy_verdicts ADD COLUMN unread text[] NOT NULL DEFAULT '{}';
"""


def upgrade() -> None:
    op.execute(_SQL)
