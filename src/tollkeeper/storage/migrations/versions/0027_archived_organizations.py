"""Store when an organization was archived.

It only adds. All projects of an archived organization are archived, and older code rejects their
keys too.
"""

from alembic import op

revision = "0027"
down_revision = "0026"
compatible_from = "0021"


def upgrade() -> None:
    op.execute("ALTER TABLE organizations ADD COLUMN archived_at timestamptz")
