"""Add caps by day, week and month for organizations, projects and keys.

Each cap is one row, with the held and settled amounts of its current period. Without period caps,
nothing more is written than before: `spending_day` is NULL in the organization's account, and in
nearly all reservations.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
compatible_from = "0017"

_SQL = """
CREATE TABLE period_caps (
    organization_id  uuid NOT NULL REFERENCES accounts (organization_id),
    -- The organization, the project, or the first of the keys that were rotated one into another.
    subject_id       uuid NOT NULL,
    scope            text NOT NULL CHECK (scope IN ('organization', 'project', 'key')),
    period           text NOT NULL CHECK (period IN ('day', 'week', 'month')),
    cap              picousd NOT NULL CHECK (cap >= 0),
    -- The amount by which the spending of the period exceeded the cap when the cap was set.
    cap_excess       picousd NOT NULL DEFAULT 0 CHECK (cap_excess >= 0),
    -- The current period; domain/caps.py says how periods are numbered.
    number           integer NOT NULL,
    held             picousd NOT NULL CHECK (held >= 0),
    settled          picousd NOT NULL CHECK (settled >= 0),
    -- The part of `settled` whose reservations were dropped with their month.
    settled_dropped  picousd NOT NULL DEFAULT 0 CHECK (settled_dropped >= 0),
    PRIMARY KEY (organization_id, subject_id, period)
) WITH (fillfactor = 50);

-- The latest day of UTC, since 1970-01-01, that holds count for. NULL: there are no period caps.
ALTER TABLE accounts ADD COLUMN spending_day integer;

-- The day whose caps the hold counts for, where it is another one than that of `held_at`: the clock
-- was set back.
ALTER TABLE reservations ADD COLUMN spending_day integer;
CREATE INDEX reservations_on_other_days ON reservations (organization_id, spending_day)
    WHERE spending_day IS NOT NULL;

-- The first of the keys that were rotated one into another, whose caps they all share. NULL: the key
-- itself.
ALTER TABLE project_keys ADD COLUMN first_key_id uuid;
WITH RECURSIVE rotated AS (
    SELECT k.organization_id, k.id AS first_key_id, k.replaced_by FROM project_keys k
    WHERE k.replaced_by IS NOT NULL AND NOT EXISTS (SELECT FROM project_keys b
        WHERE b.organization_id = k.organization_id AND b.replaced_by = k.id)
    UNION ALL
    SELECT r.organization_id, r.first_key_id, k.replaced_by FROM rotated r
    JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.replaced_by
    WHERE k.replaced_by IS NOT NULL
)
UPDATE project_keys k SET first_key_id = r.first_key_id FROM rotated r
WHERE k.organization_id = r.organization_id AND k.id = r.replaced_by;

-- As in domain/caps.py: 1970-01-01 was a Thursday, and weeks begin on Monday.
CREATE FUNCTION cap_period_number(period text, day integer) RETURNS integer
IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
    SELECT CASE period WHEN 'day' THEN day
        WHEN 'week' THEN floor((day + 3) / 7.0)::integer
        ELSE to_char(date '1970-01-01' + day, 'YYYYMM')::integer END
$$;

CREATE FUNCTION cap_period_first_day(period text, number integer) RETURNS integer
IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
    SELECT CASE period WHEN 'day' THEN number
        WHEN 'week' THEN number * 7 - 3
        ELSE make_date(number / 100, mod(number, 100), 1) - date '1970-01-01' END
$$;

CREATE FUNCTION cap_spending_day(spending_day integer, held_at timestamptz) RETURNS integer
IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
    SELECT coalesce(spending_day, floor(extract(epoch FROM held_at) / 86400)::integer)
$$;
"""


def upgrade() -> None:
    # Executed by the driver directly, because SQLAlchemy would treat % and : as parameters.
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(_SQL)
