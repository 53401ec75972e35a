"""Store the newest PostgreSQL server that any process has seen.

It only adds. Older code does not read the table, so it does not reject an old primary.
"""

from alembic import op

revision = "0028"
down_revision = "0027"
compatible_from = "0021"


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE server_fence (
            only_row                boolean PRIMARY KEY DEFAULT true CHECK (only_row),
            epoch                   integer NOT NULL DEFAULT 0 CHECK (epoch >= 0),
            -- The newest server that a process has seen; NULL before the first one.
            seen_epoch              integer,
            seen_timeline           integer,
            seen_system_identifier  bigint,
            CHECK (num_nulls(seen_epoch, seen_timeline, seen_system_identifier) IN (0, 3))
        );
        INSERT INTO server_fence DEFAULT VALUES;
        """
    )
