"""Create accounts, reservations, their resolutions, and the heartbeats of processes.

A reservation is never edited. Its mark and its resolution are separate rows, and the primary keys
allow each only once. The transaction of a resolution adds a row to `unfolded`; the next fast
transaction that locks the account folds that row into the account, exactly once. Amounts are
numeric without fraction: exact, and wide enough for a trillion dollars.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
compatible_from = "0002"

_SQL = """
CREATE DOMAIN picousd AS numeric(38, 0);

CREATE TABLE accounts (
    organization_id  uuid PRIMARY KEY REFERENCES organizations (id),
    granted          picousd NOT NULL DEFAULT 0,
    available        picousd NOT NULL DEFAULT 0,
    held             picousd NOT NULL DEFAULT 0 CHECK (held >= 0),
    unsettled        picousd NOT NULL DEFAULT 0 CHECK (unsettled >= 0),
    settled          picousd NOT NULL DEFAULT 0 CHECK (settled >= 0),
    overage          picousd NOT NULL DEFAULT 0 CHECK (overage >= 0),
    month            integer NOT NULL DEFAULT 0,
    month_held       picousd NOT NULL DEFAULT 0 CHECK (month_held >= 0),
    month_settled    picousd NOT NULL DEFAULT 0 CHECK (month_settled >= 0),
    cap              picousd CHECK (cap >= 0),
    cap_period       text CHECK (cap_period IN ('month', 'total')),
    -- The amount by which the spending exceeded the cap when the cap was set.
    cap_excess       picousd NOT NULL DEFAULT 0 CHECK (cap_excess >= 0),
    -- Every change of published policies raises it; a process that knows another value reads again.
    epoch            bigint NOT NULL DEFAULT 0,
    CHECK (granted = available + held + unsettled + settled),
    -- Only overage may make the balance negative.
    CHECK (available >= - overage),
    CHECK ((cap IS NULL) = (cap_period IS NULL))
) WITH (fillfactor = 50);

CREATE TABLE project_accounts (
    organization_id      uuid NOT NULL,
    project_id           uuid NOT NULL,
    held                 picousd NOT NULL DEFAULT 0 CHECK (held >= 0),
    unsettled            picousd NOT NULL DEFAULT 0 CHECK (unsettled >= 0),
    settled              picousd NOT NULL DEFAULT 0 CHECK (settled >= 0),
    month                integer NOT NULL DEFAULT 0,
    month_held           picousd NOT NULL DEFAULT 0 CHECK (month_held >= 0),
    month_settled        picousd NOT NULL DEFAULT 0 CHECK (month_settled >= 0),
    cap                  picousd CHECK (cap >= 0),
    cap_period           text CHECK (cap_period IN ('month', 'total')),
    cap_excess           picousd NOT NULL DEFAULT 0 CHECK (cap_excess >= 0),
    live_holds           integer NOT NULL DEFAULT 0 CHECK (live_holds >= 0),
    requests_per_minute  integer CHECK (requests_per_minute >= 1),
    concurrency          integer CHECK (concurrency >= 1),
    -- NULL: the project has made no request yet, and the bucket is full.
    rate_units           bigint,
    rate_at_us           bigint,
    PRIMARY KEY (organization_id, project_id),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id),
    CHECK ((cap IS NULL) = (cap_period IS NULL))
) WITH (fillfactor = 50);

INSERT INTO accounts (organization_id) SELECT id FROM organizations;
INSERT INTO project_accounts (organization_id, project_id) SELECT organization_id, id FROM projects;

CREATE TABLE grants (
    organization_id  uuid NOT NULL REFERENCES accounts (organization_id),
    id               uuid NOT NULL,
    amount           picousd NOT NULL CHECK (amount <> 0),
    note             text NOT NULL,
    granted_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (organization_id, id)
);

CREATE TABLE processes (
    id            uuid PRIMARY KEY,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE reservations (
    organization_id     uuid NOT NULL,
    id                  uuid NOT NULL,
    project_id          uuid NOT NULL,
    api_key_id          uuid NOT NULL,
    process_id          uuid NOT NULL,
    model               text NOT NULL,
    hold                picousd NOT NULL CHECK (hold >= 0),
    -- The prices at the time of the hold, and the bounds that the hold was computed from.
    price_prompt        picousd NOT NULL,
    price_completion    picousd NOT NULL,
    price_image         picousd NOT NULL,
    price_request       picousd NOT NULL,
    price_cache_read    picousd NOT NULL,
    prompt_tokens_max   bigint NOT NULL,
    choices             integer NOT NULL,
    output_tokens_max   bigint NOT NULL,
    images              integer NOT NULL,
    month               integer NOT NULL,
    held_at             timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id),
    FOREIGN KEY (organization_id, project_id) REFERENCES project_accounts (organization_id, project_id),
    CHECK (hold = greatest(price_prompt, price_cache_read) * prompt_tokens_max
                + price_completion * choices * output_tokens_max
                + price_image * images + price_request)
);
-- Recovery searches the holds of a dead process by time; the rows are stored in the order of time.
CREATE INDEX reservations_in_time ON reservations USING brin (held_at);

CREATE TABLE unsettled_marks (
    organization_id  uuid NOT NULL,
    reservation_id   uuid NOT NULL,
    reason           text NOT NULL,
    marked_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (organization_id, reservation_id),
    FOREIGN KEY (organization_id, reservation_id) REFERENCES reservations (organization_id, id)
);

CREATE TABLE resolutions (
    organization_id  uuid NOT NULL,
    reservation_id   uuid NOT NULL,
    kind             text NOT NULL CHECK (kind IN ('settled', 'released')),
    hold             picousd NOT NULL,
    settled          picousd NOT NULL CHECK (settled >= 0),
    released         picousd NOT NULL CHECK (released >= 0),
    -- The cost by price dimension; `other` is the amount of a settlement by an operator.
    prompt           picousd NOT NULL CHECK (prompt >= 0),
    completion       picousd NOT NULL CHECK (completion >= 0),
    input_cache_read picousd NOT NULL CHECK (input_cache_read >= 0),
    image            picousd NOT NULL CHECK (image >= 0),
    request          picousd NOT NULL CHECK (request >= 0),
    other            picousd NOT NULL CHECK (other >= 0),
    estimated        boolean NOT NULL,
    resolved_by      text NOT NULL,
    day              integer NOT NULL CHECK (day >= 0),
    resolved_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, reservation_id),
    FOREIGN KEY (organization_id, reservation_id) REFERENCES reservations (organization_id, id),
    CHECK (settled + released = hold),
    CHECK (settled = least(hold, prompt + completion + input_cache_read + image + request + other)),
    CHECK (kind = 'settled' OR settled = 0)
);

CREATE TABLE overages (
    organization_id  uuid NOT NULL,
    reservation_id   uuid NOT NULL,
    amount           picousd NOT NULL CHECK (amount > 0),
    PRIMARY KEY (organization_id, reservation_id),
    FOREIGN KEY (organization_id, reservation_id) REFERENCES resolutions (organization_id, reservation_id)
);

CREATE TABLE unfolded (
    organization_id  uuid NOT NULL,
    reservation_id   uuid NOT NULL,
    kind             text NOT NULL CHECK (kind IN ('unsettled', 'resolved')),
    project_id       uuid NOT NULL,
    month            integer NOT NULL,
    hold             picousd NOT NULL,
    settled          picousd NOT NULL,
    overage          picousd NOT NULL,
    PRIMARY KEY (organization_id, reservation_id, kind)
);
"""


def upgrade() -> None:
    op.execute(_SQL)
