"""Give grants a kind, and record payments with their refunds, disputes and events.

It only adds. Older code leaves `kind` at its default, so existing and older rows are grants. A
refund may make a balance negative, so the constraint of the balance allows for the refunded amount.
"""

from alembic import op

revision = "0035"
down_revision = "0034"
compatible_from = "0021"

concurrent_indexes = {"grants_of_organization": "ON grants (organization_id, granted_at)"}

_SQL = """
ALTER TABLE grants
    ADD COLUMN kind text NOT NULL DEFAULT 'grant',
    -- The payment that the grant belongs to; NULL: an operator made it.
    ADD COLUMN payment_id text,
    ADD CONSTRAINT grants_kind CHECK (kind IN
        ('grant', 'withdrawal', 'payment', 'test_payment', 'refund', 'test_refund')) NOT VALID;
-- A payment is granted once.
CREATE UNIQUE INDEX grants_of_payments ON grants (organization_id, payment_id)
    WHERE kind IN ('payment', 'test_payment') AND payment_id IS NOT NULL;
CREATE INDEX grants_by_payment ON grants (organization_id, payment_id) WHERE payment_id IS NOT NULL;

ALTER TABLE accounts
    -- The sum of grants of the kinds `refund` and `test_refund`, as a positive amount.
    ADD COLUMN refunded picousd NOT NULL DEFAULT 0,
    ADD CONSTRAINT accounts_refunded CHECK (refunded >= 0) NOT VALID,
    DROP CONSTRAINT accounts_check1,
    -- Only overage and refunds may make the balance negative.
    ADD CONSTRAINT accounts_available CHECK (available >= - overage - refunded) NOT VALID;

-- What the payment provider has reported about a payment, in any order. `id` is the payment intent.
CREATE TABLE payments (
    id               text PRIMARY KEY,
    -- NULL: no event has named an organization of this installation yet.
    organization     uuid,
    livemode         boolean NOT NULL,
    -- NULL: the payment has not succeeded yet.
    paid             picousd CHECK (paid > 0),
    -- The largest refunded amount that an event about the whole charge has named.
    refunded         picousd NOT NULL DEFAULT 0 CHECK (refunded >= 0),
    first_event_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX payments_of_organization ON payments (organization);

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
"""


def upgrade() -> None:
    op.execute(_SQL)
