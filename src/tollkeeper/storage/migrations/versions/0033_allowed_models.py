"""Let projects and their keys have lists of the models that their calls may use.

It only adds. Older code reads no list and admits calls to every model.
"""

from alembic import op

revision = "0033"
down_revision = "0032"
compatible_from = "0021"


def upgrade() -> None:
    # Null: every model.
    op.execute("ALTER TABLE projects ADD COLUMN models text[]")
    op.execute("ALTER TABLE project_keys ADD COLUMN models text[]")
