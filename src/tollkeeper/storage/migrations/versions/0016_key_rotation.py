"""Which key has replaced a project key: a key is rotated once."""

from alembic import op

revision = "0016"
down_revision = "0015"

_SQL = """
ALTER TABLE project_keys ADD COLUMN replaced_by uuid;
"""


def upgrade() -> None:
    op.execute(_SQL)
