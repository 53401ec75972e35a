"""Add two price dimensions of settlements, and store the usage that a backend reported next to the
charged usage."""

from alembic import op

revision = "0005"
down_revision = "0004"
compatible_from = "0005"

_SQL = """
ALTER TABLE resolutions
    ADD COLUMN input_cache_write picousd NOT NULL DEFAULT 0 CHECK (input_cache_write >= 0),
    ADD COLUMN web_search picousd NOT NULL DEFAULT 0 CHECK (web_search >= 0),
    DROP CONSTRAINT resolutions_check1,
    ADD CONSTRAINT resolutions_settled_is_cost CHECK (settled = least(hold, prompt + completion
        + input_cache_read + input_cache_write + image + request + web_search + other));

ALTER TABLE activity
    ADD COLUMN cache_write_tokens bigint,
    ADD COLUMN web_searches bigint,
    -- The last report, as it came, and the backend's own price in it.
    ADD COLUMN reported_usage jsonb,
    ADD COLUMN reported_cost picousd;
"""


def upgrade() -> None:
    op.execute(_SQL)
