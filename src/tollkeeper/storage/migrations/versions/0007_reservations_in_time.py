"""Make the newest reservations findable by time as soon as they are written.

Without this, the index learns of new pages only at the next vacuum, and until then every search by
time reads all of them: up to a fifth of the table.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
compatible_from = "0007"

_SQL = """
ALTER INDEX reservations_in_time SET (autosummarize = on);
"""


def upgrade() -> None:
    op.execute(_SQL)
