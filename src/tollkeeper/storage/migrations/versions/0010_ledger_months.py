"""Partition reservations, resolutions and overages by month, and store the totals of closed months.

The id of a reservation contains its time, and the tables are partitioned by that id. So the primary
keys remain: a reservation exists once and is resolved once, whatever clocks say, because an id
belongs to exactly one partition. The existing tables become the default partitions; no row is
copied. Their rows whose ids belong to a month move to that month.

A closed month is sealed: triggers on its partitions reject every change. Its totals are immutable
rows too, and each close has a digest over them and over the previous close.
"""

from alembic import op

revision = "0010"
down_revision = "0009"
compatible_from = "0010"

_PARTITIONED = """
ALTER TABLE unsettled_marks DROP CONSTRAINT unsettled_marks_organization_id_reservation_id_fkey;

ALTER TABLE reservations RENAME TO reservations_default;
ALTER TABLE resolutions RENAME TO resolutions_default;
ALTER TABLE overages RENAME TO overages_default;
ALTER INDEX reservations_pkey RENAME TO reservations_default_pkey;
ALTER INDEX resolutions_pkey RENAME TO resolutions_default_pkey;
ALTER INDEX overages_pkey RENAME TO overages_default_pkey;
ALTER INDEX reservations_in_time RENAME TO reservations_default_in_time;

CREATE TABLE reservations (LIKE reservations_default INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    PRIMARY KEY (organization_id, id),
    FOREIGN KEY (organization_id, project_id)
        REFERENCES project_accounts (organization_id, project_id)
) PARTITION BY RANGE (id);
CREATE INDEX reservations_in_time ON reservations USING brin (held_at) WITH (autosummarize = on);

-- A resolution lies in the month of its reservation, so its foreign key is one between partitions:
-- it is checked in one table, and a month can be dropped without a look at the others.
CREATE TABLE resolutions (LIKE resolutions_default INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    PRIMARY KEY (organization_id, reservation_id)
) PARTITION BY RANGE (reservation_id);
CREATE TABLE overages (LIKE overages_default INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    PRIMARY KEY (organization_id, reservation_id)
) PARTITION BY RANGE (reservation_id);

ALTER TABLE reservations ATTACH PARTITION reservations_default DEFAULT;
ALTER TABLE resolutions ATTACH PARTITION resolutions_default DEFAULT;
ALTER TABLE overages ATTACH PARTITION overages_default DEFAULT;

CREATE FUNCTION ledger_month(id uuid) RETURNS integer IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
    SELECT to_char(to_timestamp(('x' || translate(left(id::text, 13), '-', ''))::bit(48)::bigint
        / 1000.0) AT TIME ZONE 'UTC', 'YYYYMM')::integer
$$;

CREATE FUNCTION ledger_first_id(first_day date) RETURNS uuid IMMUTABLE PARALLEL SAFE LANGUAGE sql
AS $$
    SELECT (lpad(to_hex((first_day - date '1970-01-01')::bigint * 86400000), 12, '0')
        || repeat('0', 20))::uuid
$$;

-- A mark belongs to a reservation. It is not a foreign key, because one to a partitioned table would
-- make the drop of a month search all marks while calls wait.
CREATE FUNCTION ledger_check_mark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM reservations
                   WHERE organization_id = NEW.organization_id AND id = NEW.reservation_id) THEN
        RAISE EXCEPTION 'there is no reservation % to mark', NEW.reservation_id
            USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_mark BEFORE INSERT ON unsettled_marks
    FOR EACH ROW EXECUTE FUNCTION ledger_check_mark();
"""

_CLOSES = """
CREATE TABLE ledger_closes (
    month            integer PRIMARY KEY,
    -- NULL for the first close. Months are closed in order, without a gap.
    previous_month   integer UNIQUE REFERENCES ledger_closes (month),
    reservations     bigint NOT NULL,
    -- SHA-256 over the close before and all totals and lines of this one.
    digest           bytea NOT NULL CHECK (length(digest) = 32),
    closed_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX ledger_closes_first ON ledger_closes ((previous_month IS NULL))
    WHERE previous_month IS NULL;

CREATE TABLE ledger_close_totals (
    organization_id  uuid NOT NULL,
    month            integer NOT NULL,
    project_id       uuid NOT NULL,
    -- The month whose cap the holds counted for. It can differ from the month of the ledger.
    spending_month   integer NOT NULL,
    settled_count    bigint NOT NULL CHECK (settled_count >= 0),
    released_count   bigint NOT NULL CHECK (released_count >= 0),
    hold             picousd NOT NULL CHECK (hold >= 0),
    settled          picousd NOT NULL CHECK (settled >= 0),
    released         picousd NOT NULL CHECK (released >= 0),
    overage          picousd NOT NULL CHECK (overage >= 0),
    PRIMARY KEY (organization_id, month, project_id, spending_month),
    CHECK (settled + released = hold)
);

CREATE TABLE ledger_close_lines (
    organization_id  uuid NOT NULL,
    month            integer NOT NULL,
    day              integer NOT NULL,
    project_id       uuid NOT NULL,
    api_key_id       uuid NOT NULL,
    line_item        text NOT NULL,
    amount           picousd NOT NULL CHECK (amount > 0),
    PRIMARY KEY (organization_id, month, day, project_id, api_key_id, line_item)
);
CREATE INDEX ledger_close_totals_of_month ON ledger_close_totals (month);
CREATE INDEX ledger_close_lines_of_month ON ledger_close_lines (month);

-- What was done with a closed month, each once.
CREATE TABLE ledger_close_steps (
    month        integer NOT NULL REFERENCES ledger_closes (month),
    step         text NOT NULL CHECK (step IN ('proven', 'exported', 'dropped')),
    done_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Of an export: SHA-256 of the CSV text, its rows without the header, and the file's name.
    csv_digest   bytea CHECK (length(csv_digest) = 32),
    csv_rows     bigint,
    file_name    text,
    PRIMARY KEY (month, step),
    CHECK ((step = 'exported') = (csv_digest IS NOT NULL AND csv_rows IS NOT NULL
        AND file_name IS NOT NULL))
);

CREATE FUNCTION ledger_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of a closed month are not changed (%)', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;

-- Totals are written before their close, and never after it.
CREATE FUNCTION ledger_check_close_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM ledger_closes WHERE month = NEW.month) THEN
        RAISE EXCEPTION 'the month % is closed', NEW.month USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

-- A hold of a closed month is refused, also after its partition was dropped. One that is there
-- already is left to the primary key.
CREATE FUNCTION ledger_check_reservation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM ledger_closes WHERE month = ledger_month(NEW.id))
       AND NOT EXISTS (SELECT FROM reservations
                       WHERE organization_id = NEW.organization_id AND id = NEW.id) THEN
        RAISE EXCEPTION 'the month % is closed', ledger_month(NEW.id)
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_reservation BEFORE INSERT ON reservations_default
    FOR EACH ROW EXECUTE FUNCTION ledger_check_reservation();

CREATE FUNCTION ledger_make_immutable(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON %I
        FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change()', name);
    EXECUTE format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON %I
        FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_change()', name);
END $$;
SELECT ledger_make_immutable(name) FROM unnest(ARRAY['ledger_closes', 'ledger_close_totals',
    'ledger_close_lines', 'ledger_close_steps']) AS name;
CREATE TRIGGER check_close_row BEFORE INSERT ON ledger_close_totals
    FOR EACH ROW EXECUTE FUNCTION ledger_check_close_row();
CREATE TRIGGER check_close_row BEFORE INSERT ON ledger_close_lines
    FOR EACH ROW EXECUTE FUNCTION ledger_check_close_row();
"""

_MONTHS = """
CREATE FUNCTION ledger_add_month(first_day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    suffix text := to_char(first_day, 'YYYYMM');
    first_id uuid := ledger_first_id(first_day);
    end_id uuid := ledger_first_id((first_day + interval '1 month')::date);
    name text;
    key text;
BEGIN
    LOCK TABLE reservations_default, resolutions_default, overages_default
        IN ACCESS EXCLUSIVE MODE;
    FOREACH name IN ARRAY ARRAY['reservations', 'resolutions', 'overages'] LOOP
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', name || '_' || suffix, name);
        key := CASE name WHEN 'reservations' THEN 'id' ELSE 'reservation_id' END;
        EXECUTE format('INSERT INTO %I SELECT * FROM %I WHERE %I >= %L AND %I < %L',
            name || '_' || suffix, name || '_default', key, first_id, key, end_id);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['overages', 'resolutions', 'reservations'] LOOP
        key := CASE name WHEN 'reservations' THEN 'id' ELSE 'reservation_id' END;
        EXECUTE format('DELETE FROM %I WHERE %I >= %L AND %I < %L', name || '_default',
            key, first_id, key, end_id);
    END LOOP;
    EXECUTE format('ALTER TABLE %I ADD FOREIGN KEY (organization_id, reservation_id)
        REFERENCES %I (organization_id, id)', 'resolutions_' || suffix, 'reservations_' || suffix);
    EXECUTE format('ALTER TABLE %I ADD FOREIGN KEY (organization_id, reservation_id)
        REFERENCES %I (organization_id, reservation_id)', 'overages_' || suffix,
        'resolutions_' || suffix);
    FOREACH name IN ARRAY ARRAY['reservations', 'resolutions', 'overages'] LOOP
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
            name, name || '_' || suffix, first_id, end_id);
    END LOOP;
END $$;

-- Every reservation of the month is resolved, so that no resolution can be added either: its primary
-- key or its foreign key refuses it.
CREATE FUNCTION ledger_seal_month(month integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ledger_make_immutable(name || '_' || month)
        FROM unnest(ARRAY['reservations', 'resolutions', 'overages']) AS name;
    EXECUTE format('CREATE TRIGGER check_reservation BEFORE INSERT ON %I
        FOR EACH ROW EXECUTE FUNCTION ledger_check_reservation()', 'reservations_' || month);
    EXECUTE format('CREATE TRIGGER refuse_insert BEFORE INSERT ON %I
        FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change()', 'overages_' || month);
END $$;

SELECT ledger_add_month((date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')
    + make_interval(months => ahead))::date) FROM generate_series(0, 2) AS ahead;
"""


def upgrade() -> None:
    # Executed by the driver directly, because SQLAlchemy would treat % and : as parameters.
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    for script in (_PARTITIONED, _CLOSES, _MONTHS):
        connection.execute(script)
