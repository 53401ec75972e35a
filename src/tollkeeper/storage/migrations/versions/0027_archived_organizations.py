"""When an organization was archived.

It only adds. An organization that is archived has archived projects only, and older code refuses their
keys too.
"""

from alembic import op

revision = "0027"
down_revision = "0026"
compatible_from = "0021"


def upgrade() -> None:
    op.execute("ALTER TABLE organizations ADD COLUMN archived_at timestamptz")
