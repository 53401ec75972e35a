"""Mark the code that keeps the overage in flight of an account exact. Changes nothing in the database.

Earlier code reset the overage in flight whenever an organization held nothing, although calls with a
hold of zero are in flight without held money. Migration 0039 corrects the amounts when no such code runs
any more.
"""

revision = "0038"
down_revision = "0037"
compatible_from = "0021"


def upgrade() -> None:
    pass
