"""Assign the cost of a call to the day of its admission, even if the call is resolved later.

It only adds. Rows of older code keep the day of their settlement.
"""

from alembic import op

revision = "0024"
down_revision = "0023"
compatible_from = "0021"

_SQL = """
-- The day of the admission, if its month was closed before the call was resolved: `day` is then a day
-- of the open month, on which the cost is booked as an adjustment. NULL: it is no adjustment.
ALTER TABLE resolutions ADD COLUMN adjusts_day integer;

-- The first day that lies in no closed month. Months are closed in order.
CREATE FUNCTION ledger_open_day() RETURNS integer STABLE PARALLEL SAFE LANGUAGE sql AS $$
    SELECT coalesce((make_date(max(month) / 100, mod(max(month), 100), 1)
        + interval '1 month')::date - date '1970-01-01', 0) FROM ledger_closes
$$;

CREATE FUNCTION ledger_line_item(model text, dimension text, adjusts_day integer) RETURNS text
STABLE PARALLEL SAFE LANGUAGE sql AS $$
    SELECT model || ', ' || dimension || CASE WHEN adjusts_day IS NULL THEN ''
        ELSE ', adjustment of ' || to_char(date '1970-01-01' + adjusts_day, 'YYYY-MM-DD') END
$$;
"""


def upgrade() -> None:
    # Executed by the driver directly, because SQLAlchemy would treat % and : as parameters.
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(_SQL)
