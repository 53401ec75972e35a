"""Create the audit: one row for every change that an operator or an admin key made."""

from alembic import op

revision = "0015"
down_revision = "0014"
compatible_from = "0015"

_SQL = """
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
-- Pages of the whole list, of one object, and the first row of a time.
CREATE INDEX audit_in_order ON audit (id);
CREATE INDEX audit_of_object ON audit (object_id, id);
CREATE INDEX audit_in_time ON audit (at);
"""


def upgrade() -> None:
    op.execute(_SQL)
