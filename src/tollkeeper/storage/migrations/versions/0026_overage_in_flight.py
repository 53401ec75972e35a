"""What calls in flight may cost beyond their holds, so that a burst stays within the overage bound.

A reservation has the most that its call may cost beyond its hold; the account has the sum over its
live holds. The transaction that ends a hold gives the amount back through `unfolded`, like the hold
itself. Older code leaves the columns at zero; what it does not give back is forgotten when the
organization holds nothing any more.
"""

from alembic import op

revision = "0026"
down_revision = "0025"
compatible_from = "0021"

_SQL = """
ALTER TABLE accounts ADD COLUMN overage_in_flight picousd NOT NULL DEFAULT 0;
ALTER TABLE reservations ADD COLUMN overage_max picousd NOT NULL DEFAULT 0;
ALTER TABLE unfolded ADD COLUMN overage_max picousd NOT NULL DEFAULT 0;
"""


def upgrade() -> None:
    op.execute(_SQL)
