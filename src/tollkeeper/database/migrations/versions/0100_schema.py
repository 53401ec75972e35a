"""The whole schema. Every primary key starts with the organization wherever a row belongs to one."""

from alembic import op

revision = "0100"
down_revision = None
compatible_from = "0100"

_SQL = r"""
-- Integers of 10^-12 USD.
CREATE DOMAIN picousd AS numeric(38, 0);

CREATE TABLE organizations (
    id           uuid PRIMARY KEY,
    name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 256),
    created_at   timestamptz NOT NULL,
    archived_at  timestamptz
);

CREATE TABLE organization_checks (
    organization_id  uuid NOT NULL REFERENCES organizations (id),
    name             text NOT NULL,
    granted_at       timestamptz NOT NULL,
    PRIMARY KEY (organization_id, name)
);

CREATE TABLE projects (
    organization_id  uuid NOT NULL REFERENCES organizations (id),
    id               uuid NOT NULL,
    name             text NOT NULL CHECK (length(name) BETWEEN 1 AND 256),
    created_at       timestamptz NOT NULL,
    archived_at      timestamptz,
    models           text[],
    PRIMARY KEY (organization_id, id)
);
CREATE INDEX projects_by_id ON projects (id);

CREATE TABLE admin_keys (
    organization_id  uuid NOT NULL REFERENCES organizations (id),
    id               uuid NOT NULL,
    name             text NOT NULL,
    digest           bytea NOT NULL CHECK (length(digest) = 32),
    redacted_value   text NOT NULL,
    permissions      text[] NOT NULL,
    created_at       timestamptz NOT NULL,
    last_used_at     timestamptz,
    expires_at       timestamptz,
    revoked_at       timestamptz,
    PRIMARY KEY (organization_id, id),
    UNIQUE (organization_id, digest)
);
CREATE INDEX admin_keys_by_digest ON admin_keys (digest);
CREATE INDEX admin_keys_by_id ON admin_keys (id);
CREATE INDEX admin_keys_in_order ON admin_keys (organization_id, created_at, id);

CREATE TABLE project_keys (
    organization_id  uuid NOT NULL,
    id               uuid NOT NULL,
    project_id       uuid NOT NULL,
    name             text NOT NULL,
    digest           bytea NOT NULL CHECK (length(digest) = 32),
    redacted_value   text NOT NULL,
    permissions      text[] NOT NULL,
    created_at       timestamptz NOT NULL,
    last_used_at     timestamptz,
    expires_at       timestamptz,
    suspended_at     timestamptz,
    revoked_at       timestamptz,
    -- A key is rotated once.
    replaced_by      uuid,
    -- The first of the keys that were rotated one into another, whose caps they all share. NULL: the
    -- key
    -- itself.
    first_key_id     uuid,
    models           text[],
    PRIMARY KEY (organization_id, id),
    UNIQUE (organization_id, digest),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id)
) WITH (fillfactor = 80);
CREATE INDEX project_keys_by_digest ON project_keys (digest);
CREATE INDEX project_keys_by_id ON project_keys (id);
CREATE INDEX project_keys_of_project ON project_keys (organization_id, project_id, created_at, id);

CREATE TABLE idempotency_records (
    organization_id  uuid NOT NULL REFERENCES organizations (id),
    operation        text NOT NULL,
    key_digest       bytea NOT NULL,
    request_digest   bytea NOT NULL,
    resource_id      text NOT NULL,
    created_at       timestamptz NOT NULL,
    sealed_secret    bytea,
    PRIMARY KEY (organization_id, operation, key_digest)
);
CREATE INDEX idempotency_records_with_secret
    ON idempotency_records (created_at) WHERE sealed_secret IS NOT NULL;

CREATE TABLE policies (
    organization_id     uuid NOT NULL REFERENCES organizations (id),
    id                  text NOT NULL,
    name                text NOT NULL,
    description         text NOT NULL,
    state               text NOT NULL
        CHECK (state IN ('draft', 'monitoring', 'enforcing', 'paused')),
    revision            integer NOT NULL CHECK (revision >= 1),
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    rule                text NOT NULL,
    direction           text NOT NULL CHECK (direction IN ('request', 'response', 'both')),
    mode                text NOT NULL CHECK (mode IN ('monitoring', 'enforcing')),
    scope               text NOT NULL CHECK (scope IN ('organization', 'projects', 'unattached')),
    project_ids         uuid[] NOT NULL,
    threshold           integer CHECK (threshold BETWEEN 1 AND 9999),
    base_version        integer NOT NULL CHECK (base_version >= 0),
    current_version     integer CHECK (current_version >= 1),
    active_calibration  integer,
    calibrated_at       timestamptz,
    CHECK ((state = 'draft') = (current_version IS NULL)),
    PRIMARY KEY (organization_id, id)
);
CREATE INDEX policies_by_id ON policies (id);

CREATE TABLE policy_versions (
    organization_id  uuid NOT NULL,
    policy_id        text NOT NULL,
    version          integer NOT NULL CHECK (version >= 1),
    id               text NOT NULL,
    name             text NOT NULL,
    rule             text NOT NULL,
    direction        text NOT NULL CHECK (direction IN ('request', 'response', 'both')),
    mode             text NOT NULL CHECK (mode IN ('monitoring', 'enforcing')),
    scope            text NOT NULL CHECK (scope IN ('organization', 'projects', 'unattached')),
    project_ids      uuid[] NOT NULL,
    threshold        integer CHECK (threshold BETWEEN 1 AND 9999),
    published_at     timestamptz NOT NULL,
    PRIMARY KEY (organization_id, policy_id, version),
    FOREIGN KEY (organization_id, policy_id) REFERENCES policies (organization_id, id)
);

CREATE TABLE policy_calibrations (
    organization_id  uuid NOT NULL,
    policy_id        text NOT NULL,
    number           integer NOT NULL CHECK (number >= 1),
    judge_model      text NOT NULL,
    prompt_format    text NOT NULL,
    rule             text NOT NULL,
    calibration      jsonb NOT NULL,
    report           jsonb NOT NULL,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (organization_id, policy_id, number),
    FOREIGN KEY (organization_id, policy_id) REFERENCES policies (organization_id, id)
);

ALTER TABLE policies ADD CONSTRAINT policies_active_calibration
    FOREIGN KEY (organization_id, id, active_calibration)
    REFERENCES policy_calibrations (organization_id, policy_id, number);

-- Amounts are exact, without fraction, and wide enough for a trillion dollars. PostgreSQL reads each
-- constraint's text again for every statement that writes the table, so the tables on the path of a
-- call have one for all amounts. `least` ignores NULL; zero is a text literal, because an integer would
-- be converted every time.
CREATE TABLE accounts (
    organization_id    uuid PRIMARY KEY REFERENCES organizations (id),
    granted            picousd NOT NULL DEFAULT 0,
    available          picousd NOT NULL DEFAULT 0,
    held               picousd NOT NULL DEFAULT 0,
    unsettled          picousd NOT NULL DEFAULT 0,
    settled            picousd NOT NULL DEFAULT 0,
    overage            picousd NOT NULL DEFAULT 0,
    -- Every change of published policies raises it; a process that knows another value reads again.
    epoch              bigint NOT NULL DEFAULT 0,
    -- NULL: the bound of the settings.
    overage_bound      picousd,
    stopped            boolean NOT NULL DEFAULT false,
    -- Whether the organization, or one of its projects or keys, has caps.
    is_capped          boolean NOT NULL DEFAULT false,
    overage_in_flight  picousd NOT NULL DEFAULT 0,
    -- The sum of grants of the kinds `refund` and `test_refund`, as a positive amount.
    refunded           picousd NOT NULL DEFAULT 0,
    CHECK (granted = available + held + unsettled + settled),
    CONSTRAINT accounts_available CHECK (available >= - overage - refunded),
    CONSTRAINT accounts_not_negative CHECK (least(held, unsettled, settled, overage,
        overage_bound, refunded) >= '0')
) WITH (fillfactor = 50);

CREATE TABLE project_accounts (
    organization_id      uuid NOT NULL,
    project_id           uuid NOT NULL,
    held                 picousd NOT NULL DEFAULT 0,
    unsettled            picousd NOT NULL DEFAULT 0,
    settled              picousd NOT NULL DEFAULT 0,
    live_holds           integer NOT NULL DEFAULT 0 CHECK (live_holds >= 0),
    requests_per_minute  integer CHECK (requests_per_minute >= 1),
    concurrency          integer CHECK (concurrency >= 1),
    -- NULL: the project has made no request yet, and the bucket is full.
    rate_units           bigint,
    rate_at_us           bigint,
    PRIMARY KEY (organization_id, project_id),
    CONSTRAINT project_accounts_not_negative CHECK (least(held, unsettled, settled) >= '0'),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id)
) WITH (fillfactor = 50);

-- The UTC day since 1970-01-01.
CREATE FUNCTION utc_day(at timestamptz) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT floor(extract(epoch FROM at) / 86400)::integer
$$;

-- As in money/caps/rule.py: 1970-01-01 was a Thursday, and weeks begin on Monday.
CREATE FUNCTION cap_period_number(period text, day integer) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE period WHEN 'day' THEN day
        WHEN 'week' THEN floor((day + 3) / 7.0)::integer
        WHEN 'month' THEN to_char(date '1970-01-01' + day, 'YYYYMM')::integer
        WHEN 'total' THEN 0 END
$$;

CREATE FUNCTION cap_period_first_day(period text, number integer) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE period WHEN 'day' THEN number
        WHEN 'week' THEN number * 7 - 3
        WHEN 'month' THEN make_date(number / 100, mod(number, 100), 1) - date '1970-01-01'
        WHEN 'total' THEN 0 END
$$;

CREATE TABLE caps (
    organization_id  uuid NOT NULL REFERENCES accounts (organization_id),
    -- The organization, the project, or the first of the keys that were rotated one into another.
    subject_id       uuid NOT NULL,
    scope            text NOT NULL CHECK (scope IN ('organization', 'project', 'key')),
    period           text NOT NULL CHECK (period IN ('day', 'week', 'month', 'total')),
    amount           picousd NOT NULL CHECK (amount >= 0),
    PRIMARY KEY (organization_id, subject_id, period)
);

-- What counts for a cap in one of its periods; money/caps/rule.py says how they're numbered.
CREATE TABLE cap_counters (
    organization_id  uuid NOT NULL,
    subject_id       uuid NOT NULL,
    period           text NOT NULL,
    number           integer NOT NULL,
    held             picousd NOT NULL,
    settled          picousd NOT NULL,
    -- By how much it was above the cap when the cap was set.
    excess           picousd NOT NULL DEFAULT 0,
    -- The part of `settled` whose reservations were dropped with their month.
    dropped          picousd NOT NULL DEFAULT 0,
    PRIMARY KEY (organization_id, subject_id, period, number),
    FOREIGN KEY (organization_id, subject_id, period)
        REFERENCES caps (organization_id, subject_id, period) ON DELETE CASCADE,
    CONSTRAINT cap_counters_not_negative CHECK (least(held, settled, excess, dropped) >= '0')
) WITH (fillfactor = 50);

CREATE TABLE grants (
    organization_id  uuid NOT NULL REFERENCES accounts (organization_id),
    id               uuid NOT NULL,
    amount           picousd NOT NULL CHECK (amount <> 0),
    note             text NOT NULL,
    granted_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind             text NOT NULL DEFAULT 'grant',
    -- The payment that the grant belongs to; NULL: an operator made it.
    payment_id       text,
    PRIMARY KEY (organization_id, id),
    CONSTRAINT grants_kind CHECK (
        kind IN ('grant', 'withdrawal', 'payment', 'test_payment', 'refund', 'test_refund'))
);
CREATE INDEX grants_by_payment ON grants (organization_id, payment_id) WHERE payment_id IS NOT NULL;
CREATE INDEX grants_of_organization ON grants (organization_id, granted_at);
CREATE UNIQUE INDEX grants_of_payments
    ON grants (organization_id, payment_id)
    WHERE kind IN ('payment', 'test_payment') AND payment_id IS NOT NULL;

-- What the payment provider has reported about a payment, in any order. `id` is the payment intent.
CREATE TABLE payments (
    id              text PRIMARY KEY,
    -- NULL: no event has named an organization of this installation yet.
    organization    uuid,
    livemode        boolean NOT NULL,
    -- NULL: the payment has not succeeded yet.
    paid            picousd CHECK (paid > 0),
    -- The largest refunded amount that an event about the whole charge has named.
    refunded        picousd NOT NULL DEFAULT 0 CHECK (refunded >= 0),
    first_event_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX payments_of_organization ON payments (organization);

CREATE TABLE payment_events (
    id                text PRIMARY KEY,
    type              text NOT NULL,
    livemode          boolean NOT NULL,
    payment_id        text,
    outcome           text NOT NULL,
    detail            text NOT NULL,
    deliveries        bigint NOT NULL DEFAULT 1,
    received_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_received_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX payment_events_by_time ON payment_events (received_at, id);
CREATE INDEX payment_events_ignored ON payment_events (received_at) WHERE outcome = 'ignored';

-- Refunds and disputes, each in the last of the stages that events have reported.
CREATE TABLE payment_withdrawals (
    id          text PRIMARY KEY,
    payment_id  text NOT NULL REFERENCES payments (id),
    kind        text NOT NULL CHECK (kind IN ('refund', 'dispute')),
    amount      picousd NOT NULL CHECK (amount > 0),
    stage       integer NOT NULL,
    -- False: the refund failed, or the dispute has not taken the money or was won.
    withdrawn   boolean NOT NULL
);
CREATE INDEX payment_withdrawals_of_payment ON payment_withdrawals (payment_id);

-- Ids contain their time, and the months of the ledger are ranges of ids. So a reservation exists once
-- and is resolved once, whatever the clocks say, because an id lies in exactly one month.
CREATE FUNCTION ledger_month(id uuid) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT to_char(to_timestamp(('x' || translate(left(id::text, 13), '-', ''))::bit(48)::bigint
        / 1000.0) AT TIME ZONE 'UTC', 'YYYYMM')::integer
$$;

CREATE FUNCTION ledger_first_id(first_day date) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex((first_day - date '1970-01-01')::bigint * 86400000), 12, '0')
        || repeat('0', 20))::uuid
$$;

-- A hold of a closed month is refused, also after its partition was dropped. One that is there already
-- is left to the primary key.
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

-- Never edited: marks and resolutions are rows of their own, and their primary keys allow each once.
CREATE TABLE reservations (
    organization_id          uuid NOT NULL,
    id                       uuid NOT NULL,
    project_id               uuid NOT NULL,
    api_key_id               uuid NOT NULL,
    process_id               uuid NOT NULL,
    model                    text NOT NULL,
    hold                     picousd NOT NULL CHECK (hold >= 0),
    -- The prices at the time of the hold, and the bounds that the hold was computed from.
    price_prompt             picousd NOT NULL,
    price_completion         picousd NOT NULL,
    price_image              picousd NOT NULL,
    price_request            picousd NOT NULL,
    price_cache_read         picousd NOT NULL,
    prompt_tokens_max        bigint NOT NULL,
    choices                  integer NOT NULL,
    output_tokens_max        bigint NOT NULL,
    images                   integer NOT NULL,
    held_at                  timestamptz NOT NULL,
    price_cache_write        picousd NOT NULL DEFAULT 0,
    price_cache_write_1h     picousd NOT NULL DEFAULT 0,
    price_web_search         picousd NOT NULL DEFAULT 0,
    web_searches             integer NOT NULL DEFAULT 0,
    price_input_audio        picousd NOT NULL DEFAULT 0,
    price_output_audio       picousd NOT NULL DEFAULT 0,
    input_audio_tokens_max   bigint NOT NULL DEFAULT 0,
    output_audio_tokens_max  bigint NOT NULL DEFAULT 0,
    -- NULL where the model has one price only.
    price_variants           jsonb,
    overage_max              picousd NOT NULL DEFAULT 0,
    PRIMARY KEY (organization_id, id),
    CONSTRAINT reservations_hold_is_its_bound CHECK (hold
        = greatest(price_prompt, price_cache_read, price_cache_write, price_cache_write_1h)
            * prompt_tokens_max
        + greatest(0, price_input_audio - greatest(price_prompt, price_cache_read,
            price_cache_write, price_cache_write_1h)) * input_audio_tokens_max
        + price_completion * choices * output_tokens_max
        + greatest(0, price_output_audio - price_completion) * choices * output_audio_tokens_max
        + price_image * images + price_web_search * web_searches + price_request),
    FOREIGN KEY (organization_id, project_id)
        REFERENCES project_accounts (organization_id, project_id)
) PARTITION BY RANGE (id);
CREATE TABLE reservations_default PARTITION OF reservations DEFAULT;
CREATE INDEX reservations_in_time ON reservations USING brin (held_at) WITH (autosummarize = on);
CREATE TRIGGER check_reservation BEFORE INSERT ON reservations_default
    FOR EACH ROW EXECUTE FUNCTION ledger_check_reservation();

-- A resolution lies in the month of its reservation, so its foreign key is one between partitions:
-- it is checked in one table, and a month can be dropped without a look at the others.
CREATE TABLE resolutions (
    organization_id    uuid NOT NULL,
    reservation_id     uuid NOT NULL,
    kind               text NOT NULL CHECK (kind IN ('settled', 'released')),
    hold               picousd NOT NULL,
    settled            picousd NOT NULL,
    released           picousd NOT NULL,
    -- The cost by price dimension; `other` is the amount of a settlement by an operator.
    prompt             picousd NOT NULL,
    completion         picousd NOT NULL,
    input_cache_read   picousd NOT NULL,
    image              picousd NOT NULL,
    request            picousd NOT NULL,
    other              picousd NOT NULL,
    estimated          boolean NOT NULL,
    resolved_by        text NOT NULL,
    day                integer NOT NULL CHECK (day >= 0),
    resolved_at        timestamptz NOT NULL,
    input_cache_write  picousd NOT NULL DEFAULT 0,
    web_search         picousd NOT NULL DEFAULT 0,
    input_audio        picousd NOT NULL DEFAULT 0,
    output_audio       picousd NOT NULL DEFAULT 0,
    output_image       picousd NOT NULL DEFAULT 0,
    -- The day of the admission, if its month was closed before the call was resolved: `day` is then a
    -- day
    -- of the open month, on which the cost is booked as an adjustment. NULL: it is no adjustment.
    adjusts_day        integer,
    CHECK (settled + released = hold),
    CHECK (kind = 'settled' OR settled = 0),
    PRIMARY KEY (organization_id, reservation_id),
    CONSTRAINT resolutions_not_negative CHECK (least(settled, released, prompt, completion,
        input_cache_read, input_cache_write, input_audio, output_audio, output_image, image,
        request, web_search, other) >= '0'),
    CONSTRAINT resolutions_settled_is_cost CHECK (settled = least(hold, prompt + completion
        + input_cache_read + input_cache_write + input_audio + output_audio + output_image + image
        + request + web_search + other))
) PARTITION BY RANGE (reservation_id);
CREATE TABLE resolutions_default PARTITION OF resolutions DEFAULT;
ALTER TABLE resolutions_default ADD CONSTRAINT resolutions_organization_id_reservation_id_fkey
    FOREIGN KEY (organization_id, reservation_id)
    REFERENCES reservations_default (organization_id, id);

CREATE TABLE overages (
    organization_id  uuid NOT NULL,
    reservation_id   uuid NOT NULL,
    amount           picousd NOT NULL CHECK (amount > 0),
    PRIMARY KEY (organization_id, reservation_id)
) PARTITION BY RANGE (reservation_id);
CREATE TABLE overages_default PARTITION OF overages DEFAULT;
ALTER TABLE overages_default ADD CONSTRAINT overages_organization_id_reservation_id_fkey
    FOREIGN KEY (organization_id, reservation_id)
    REFERENCES resolutions_default (organization_id, reservation_id);

-- The transaction of a resolution adds a row here; the next fast transaction that locks the account
-- folds it in, exactly once.
CREATE TABLE unfolded (
    organization_id  uuid NOT NULL,
    reservation_id   uuid NOT NULL,
    kind             text NOT NULL CHECK (kind IN ('unsettled', 'resolved')),
    project_id       uuid NOT NULL,
    api_key_id       uuid NOT NULL,
    -- The UTC day of the admission, whose periods the caps count it in.
    day              integer NOT NULL,
    hold             picousd NOT NULL,
    settled          picousd NOT NULL,
    overage          picousd NOT NULL,
    overage_max      picousd NOT NULL DEFAULT 0,
    PRIMARY KEY (organization_id, reservation_id, kind)
);

-- A mark belongs to a reservation. It's not a foreign key, because one to a partitioned table would
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

CREATE TABLE unsettled_marks (
    organization_id  uuid NOT NULL,
    reservation_id   uuid NOT NULL,
    reason           text NOT NULL,
    marked_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (organization_id, reservation_id)
);
CREATE TRIGGER check_mark BEFORE INSERT ON unsettled_marks
    FOR EACH ROW EXECUTE FUNCTION ledger_check_mark();

CREATE FUNCTION ledger_line_item(model text, dimension text, adjusts_day integer) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT model || ', ' || dimension || CASE WHEN adjusts_day IS NULL THEN ''
        ELSE ', adjustment of ' || to_char(date '1970-01-01' + adjusts_day, 'YYYY-MM-DD') END
$$;

CREATE TABLE cost_rollup (
    organization_id  uuid NOT NULL,
    day              integer NOT NULL CHECK (day >= 0),
    project_id       uuid NOT NULL,
    api_key_id       uuid NOT NULL,
    line_item        text NOT NULL,
    amount_picousd   numeric(38, 0) NOT NULL CHECK (amount_picousd >= 0),
    PRIMARY KEY (organization_id, day, project_id, api_key_id, line_item)
);

-- A closed month is sealed: its rows never change. Totals are written before their close, and never
-- after it.
CREATE FUNCTION ledger_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of a closed month are not changed (%)', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;

CREATE FUNCTION ledger_make_immutable(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON %I
        FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change()', name);
    EXECUTE format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON %I
        FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_change()', name);
END $$;

CREATE FUNCTION ledger_check_close_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM ledger_closes WHERE month = NEW.month) THEN
        RAISE EXCEPTION 'the month % is closed', NEW.month USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TABLE ledger_closes (
    month           integer PRIMARY KEY,
    -- NULL for the first close. Months are closed in order, without a gap.
    previous_month  integer UNIQUE REFERENCES ledger_closes (month),
    reservations    bigint NOT NULL,
    -- SHA-256 over the close before and all totals and lines of this one.
    digest          bytea NOT NULL CHECK (length(digest) = 32),
    closed_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX ledger_closes_first ON ledger_closes ((previous_month IS NULL))
    WHERE previous_month IS NULL;
SELECT ledger_make_immutable('ledger_closes');

CREATE FUNCTION ledger_open_day() RETURNS integer LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce((make_date(max(month) / 100, mod(max(month), 100), 1)
        + interval '1 month')::date - date '1970-01-01', 0) FROM ledger_closes
$$;

CREATE TABLE ledger_close_totals (
    organization_id  uuid NOT NULL,
    month            integer NOT NULL,
    project_id       uuid NOT NULL,
    settled_count    bigint NOT NULL CHECK (settled_count >= 0),
    released_count   bigint NOT NULL CHECK (released_count >= 0),
    hold             picousd NOT NULL CHECK (hold >= 0),
    settled          picousd NOT NULL CHECK (settled >= 0),
    released         picousd NOT NULL CHECK (released >= 0),
    overage          picousd NOT NULL CHECK (overage >= 0),
    CHECK (settled + released = hold),
    PRIMARY KEY (organization_id, month, project_id)
);
CREATE INDEX ledger_close_totals_of_month ON ledger_close_totals (month);
CREATE TRIGGER check_close_row BEFORE INSERT ON ledger_close_totals
    FOR EACH ROW EXECUTE FUNCTION ledger_check_close_row();
SELECT ledger_make_immutable('ledger_close_totals');

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
CREATE INDEX ledger_close_lines_of_month ON ledger_close_lines (month);
CREATE TRIGGER check_close_row BEFORE INSERT ON ledger_close_lines
    FOR EACH ROW EXECUTE FUNCTION ledger_check_close_row();
SELECT ledger_make_immutable('ledger_close_lines');

-- What was done with a closed month, each once.
CREATE TABLE ledger_close_steps (
    month       integer NOT NULL REFERENCES ledger_closes (month),
    step        text NOT NULL CHECK (step IN ('proven', 'exported', 'dropped')),
    done_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Of an export: SHA-256 of the CSV text, its rows without the header, and the file's name.
    csv_digest  bytea CHECK (length(csv_digest) = 32),
    csv_rows    bigint,
    file_name   text,
    CHECK ((step = 'exported') =
        (csv_digest IS NOT NULL AND csv_rows IS NOT NULL AND file_name IS NOT NULL)),
    PRIMARY KEY (month, step)
);
SELECT ledger_make_immutable('ledger_close_steps');

-- Adds a month's partitions, and moves rows there that went to the default ones in the meantime.
CREATE FUNCTION ledger_add_month(first_day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    suffix text := to_char(first_day, 'YYYYMM');
    -- The partitions belong beside their tables, even if the session's search path begins elsewhere.
    home text := (SELECT relnamespace::regnamespace FROM pg_class
        WHERE oid = 'reservations'::regclass);
    first_id uuid := ledger_first_id(first_day);
    end_id uuid := ledger_first_id((first_day + interval '1 month')::date);
    name text;
    key text;
BEGIN
    LOCK TABLE reservations_default, resolutions_default, overages_default
        IN ACCESS EXCLUSIVE MODE;
    FOREACH name IN ARRAY ARRAY['reservations', 'resolutions', 'overages'] LOOP
        EXECUTE format('CREATE TABLE %s.%I (LIKE %I INCLUDING ALL)', home,
            name || '_' || suffix, name);
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

CREATE TABLE ledger_verification (
    only_row     boolean DEFAULT true PRIMARY KEY CHECK (only_row),
    verified_at  timestamptz NOT NULL,
    differences  integer NOT NULL CHECK (differences >= 0)
);

-- A row for each inference request, with one partition for each UTC day. Workers create them ahead
-- and drop them after the retention time; a day without one goes to the default, so no insert fails.
CREATE TABLE activity (
    organization_id      uuid NOT NULL,
    request_id           uuid NOT NULL,
    started_at           timestamptz NOT NULL,
    project_id           uuid NOT NULL,
    api_key_id           uuid NOT NULL,
    operation            text NOT NULL,
    model                text NOT NULL,
    streamed             boolean NOT NULL,
    duration_ms          bigint NOT NULL,
    first_piece_ms       bigint,
    status               integer NOT NULL,
    error_code           text,
    finish               text,
    -- All four token counts are NULL, or none of them is.
    prompt_tokens        bigint,
    completion_tokens    bigint,
    cached_tokens        bigint,
    reasoning_tokens     bigint,
    estimated            boolean NOT NULL,
    hold                 picousd,
    cost                 picousd,
    -- The state when the request ended. The ledger has the current one.
    settlement           text NOT NULL,
    backend              text,
    replica              text,
    cache_write_tokens   bigint,
    web_searches         bigint,
    -- The last report, as it came, and the backend's own price in it.
    reported_usage       jsonb,
    reported_cost        picousd,
    input_audio_tokens   bigint,
    output_audio_tokens  bigint,
    -- What the answer named, by which it was charged.
    service_tier         text,
    -- The time until the call went to its backend, and how long the backend worked.
    dispatched_ms        bigint,
    upstream_ms          bigint,
    -- What of the call's time neither the backend nor the judge took.
    overhead_us          bigint,
    -- How many requests the record stands for: more than one only for refusals.
    requests             bigint NOT NULL DEFAULT 1,
    -- The field that an error names, and its message, which contains no text of the request.
    error_param          text,
    error_message        text,
    PRIMARY KEY (organization_id, request_id, started_at)
) PARTITION BY RANGE (started_at);
CREATE TABLE activity_default PARTITION OF activity DEFAULT;
CREATE INDEX activity_of_organization ON activity (organization_id, started_at DESC);
CREATE INDEX activity_in_time ON activity (started_at DESC);

CREATE TABLE policy_verdicts (
    organization_id           uuid NOT NULL,
    request_id                uuid NOT NULL,
    policy_id                 text NOT NULL,
    version                   integer NOT NULL,
    direction                 text NOT NULL CHECK (direction IN ('request', 'response')),
    mode                      text NOT NULL CHECK (mode IN ('monitoring', 'enforcing')),
    -- NULL: the judge was down or late, or its answer could not be read.
    probability_basis_points  integer CHECK (probability_basis_points BETWEEN 0 AND 10000),
    threshold                 integer NOT NULL CHECK (threshold BETWEEN 1 AND 9999),
    matched                   boolean NOT NULL,
    duration_ms               bigint NOT NULL,
    judged_at                 timestamptz NOT NULL,
    unread                    text[] NOT NULL DEFAULT '{}',
    -- When the judged call began: the same as in its record of activity.
    started_at                timestamptz NOT NULL,
    first_basis_points        integer,
    CHECK (
        matched = (probability_basis_points IS NOT NULL AND probability_basis_points >= threshold)),
    PRIMARY KEY (organization_id, request_id, policy_id, direction, judged_at)
) PARTITION BY RANGE (judged_at);
CREATE TABLE policy_verdicts_default PARTITION OF policy_verdicts DEFAULT;
CREATE INDEX policy_verdicts_matched
    ON policy_verdicts (organization_id, policy_id, started_at, request_id) WHERE matched;
CREATE INDEX policy_verdicts_of_policy
    ON policy_verdicts (organization_id, policy_id, started_at, request_id);

-- Reports read these sums instead of the records. The statement that writes the records writes them:
-- by key and five minutes for tenants, and by replica, five minutes and hour for all organizations.
CREATE TABLE traffic (
    -- All zeros, as project and key: the calls of all organizations.
    organization_id    uuid NOT NULL,
    -- 1, or 12 for an hour.
    steps              integer NOT NULL,
    -- The first of the steps, which have 300 seconds each, since the epoch.
    step               integer NOT NULL,
    project_id         uuid NOT NULL,
    api_key_id         uuid NOT NULL,
    model              text NOT NULL,
    -- Empty for a tenant, and where the call reached no backend.
    backend            text NOT NULL,
    replica            text NOT NULL,
    status             integer NOT NULL,
    requests           bigint NOT NULL,
    -- How many of the requests have no record of their own.
    repeated           bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    duration_ms        bigint NOT NULL,
    -- Of calls that delivered a first piece: their number, the sum of the times until it came, and
    -- the tokens that followed with the time they took.
    first_pieces       bigint NOT NULL,
    first_piece_ms     bigint NOT NULL,
    streamed_tokens    bigint NOT NULL,
    streaming_ms       bigint NOT NULL,
    cost_max           picousd NOT NULL,
    PRIMARY KEY (organization_id, steps, step, project_id, api_key_id, model, backend, replica,
        status)
) WITH (fillfactor = 70);
CREATE INDEX traffic_in_time ON traffic USING brin (step);

CREATE TABLE traffic_latency (
    step      integer NOT NULL,
    model     text NOT NULL,
    backend   text NOT NULL,
    measure   text NOT NULL CHECK (measure IN ('duration', 'first_piece', 'overhead')),
    -- Times up to 1.1 ^ rung milliseconds; microseconds for `overhead`.
    rung      integer NOT NULL,
    requests  bigint NOT NULL,
    PRIMARY KEY (step, model, backend, measure, rung)
) WITH (fillfactor = 70);

CREATE TABLE verdict_counts (
    organization_id           uuid NOT NULL,
    policy_id                 text NOT NULL,
    -- Days since the epoch.
    day                       integer NOT NULL,
    version                   integer NOT NULL,
    direction                 text NOT NULL,
    -- -1 where the judge gave none.
    probability_basis_points  integer NOT NULL,
    asked                     bigint NOT NULL,
    matched                   bigint NOT NULL,
    PRIMARY KEY (organization_id, policy_id, day, version, direction, probability_basis_points)
) WITH (fillfactor = 70);

-- What providers may charge for, by UTC day. It's never deleted, because bills come late.
CREATE TABLE backend_usage (
    -- Whose policies a judge answered for. All zeros: calls of all organizations, or an operator who
    -- tried a rule.
    organization_id     uuid NOT NULL,
    -- Counted since 1970-01-01: the day on which the call began, or the question was asked.
    day                 integer NOT NULL,
    backend             text NOT NULL,
    -- For a question to a judge: "judge/", and the model as the backend calls it.
    model               text NOT NULL,
    -- Calls that the backend may have charged for (settled, or unsettled when they ended), or questions.
    requests            bigint NOT NULL,
    -- Of these, those whose cost was not known when they ended, and questions whose tokens are not
    -- known. They are not in the sums.
    unsettled_requests  bigint NOT NULL,
    input_tokens        bigint NOT NULL,
    cached_tokens       bigint NOT NULL,
    cache_write_tokens  bigint NOT NULL,
    output_tokens       bigint NOT NULL,
    -- Of a judge: by the prices that the catalogue has for the same model of the same backend.
    cost                picousd NOT NULL,
    -- The sum of the backend's own prices, where it reported one.
    reported_cost       picousd NOT NULL,
    PRIMARY KEY (organization_id, day, backend, model)
);
CREATE INDEX backend_usage_of_backend ON backend_usage (backend, day);

CREATE TABLE audit (
    organization_id  uuid NOT NULL,
    id               bigint GENERATED ALWAYS AS IDENTITY,
    at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor_kind       text NOT NULL CHECK (actor_kind IN ('cli', 'console', 'api', 'system')),
    actor            text NOT NULL,
    operation        text NOT NULL,
    object_kind      text NOT NULL,
    object_id        text NOT NULL,
    before           jsonb,
    after            jsonb,
    PRIMARY KEY (organization_id, id)
);
CREATE INDEX audit_in_order ON audit (id);
CREATE INDEX audit_in_time ON audit (at);
CREATE INDEX audit_of_object ON audit (object_id, id);

-- Calls that cost more than their holds: the largest excess of each day, in relation to the hold.
CREATE TABLE observed_excesses (
    model     text NOT NULL,
    backend   text NOT NULL,
    -- The UTC day of `noted_at`.
    day       date NOT NULL,
    hold      picousd NOT NULL CHECK (hold >= 0),
    cost      picousd NOT NULL,
    noted_at  timestamptz NOT NULL,
    PRIMARY KEY (model, backend, day),
    CHECK (cost > hold)
);

-- What is raised now. A row is written when it is raised, changed with its level, and deleted when
-- it is cleared; each time one delivery is added in the same transaction.
CREATE TABLE alerts (
    key        text PRIMARY KEY,
    kind       text NOT NULL,
    level      integer NOT NULL CHECK (level > 0),
    subject    jsonb NOT NULL,
    detail     text NOT NULL,
    raised_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What a single process sees, such as the health of a backend. It counts until it expires.
CREATE TABLE alert_observations (
    key         text PRIMARY KEY,
    kind        text NOT NULL,
    subject     jsonb NOT NULL,
    detail      text NOT NULL,
    expires_at  timestamptz NOT NULL
);

CREATE TABLE alert_deliveries (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body      text NOT NULL,
    attempts  integer NOT NULL DEFAULT 0,
    due_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX alert_deliveries_by_time ON alert_deliveries (due_at);

CREATE TABLE processes (
    id             uuid PRIMARY KEY,
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    code_revision  text,
    host           text,
    pid            integer,
    -- 'console' where it is one; nothing for a gateway.
    kind           text
);

-- A table of its own: every hold writes the row of its process, which must stay small.
CREATE TABLE replica_reports (
    process_id   uuid PRIMARY KEY REFERENCES processes (id) ON DELETE CASCADE,
    reported_at  timestamptz NOT NULL,
    report       jsonb NOT NULL
) WITH (fillfactor = 50);

-- The newest PostgreSQL server that any process has seen.
CREATE TABLE server_fence (
    only_row                boolean DEFAULT true PRIMARY KEY CHECK (only_row),
    epoch                   integer NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    -- A random token for the timeline, written by the first process that uses the server on this
    -- timeline. Two copies that were promoted to the same timeline number have different tokens.
    history                 uuid,
    history_timeline        integer,
    -- The newest server that a process has seen; NULL before the first one.
    seen_epoch              integer,
    seen_timeline           integer,
    seen_system_identifier  bigint,
    seen_database           bigint,
    seen_history            uuid,
    CHECK (num_nulls(history, history_timeline) IN (0, 2)),
    CHECK (num_nulls(seen_epoch, seen_timeline, seen_system_identifier, seen_database) IN (0, 4)),
    CHECK (seen_history IS NULL OR seen_epoch IS NOT NULL)
);

INSERT INTO server_fence DEFAULT VALUES;

CREATE TABLE console_sessions (
    -- The SHA-256 of the cookie.
    digest        bytea PRIMARY KEY,
    -- What the person signed in with: the operator token, or the settings of the identity provider.
    credential    bytea NOT NULL,
    subject       text NOT NULL,
    name          text NOT NULL,
    role          text NOT NULL CHECK (role IN ('organization', 'viewer', 'operator', 'owner')),
    organization  uuid,
    began_at      timestamptz NOT NULL,
    seen_at       timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    CHECK ((organization IS NOT NULL) = (role = 'organization'))
);
CREATE INDEX console_sessions_of_person ON console_sessions (subject, credential);

-- A row for each migration that was applied: the oldest code that works with the schema after it.
CREATE TABLE schema_revisions (
    revision         text PRIMARY KEY,
    compatible_from  text NOT NULL,
    applied_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (compatible_from <= revision)
);
"""


def upgrade() -> None:
    # Executed by the driver directly, because SQLAlchemy would treat % and : as parameters.
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(_SQL)
