"""Store the maximum cost of calls in flight beyond their holds, so that a burst stays within the
overage limit.

A reservation has the maximum that its call may cost beyond its hold; the account has the sum over
its live holds. The transaction that ends a hold returns the amount through `unfolded`, like the
hold itself. Older code leaves the columns at zero; amounts that it does not return are cleared when
the organization holds nothing any more.
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
