"""Make the prices of cache writes and web searches part of a hold and of its check."""

from alembic import op

revision = "0006"
down_revision = "0005"
compatible_from = "0006"

_SQL = """
ALTER TABLE reservations
    ADD COLUMN price_cache_write picousd NOT NULL DEFAULT 0,
    ADD COLUMN price_cache_write_1h picousd NOT NULL DEFAULT 0,
    ADD COLUMN price_web_search picousd NOT NULL DEFAULT 0,
    ADD COLUMN web_searches integer NOT NULL DEFAULT 0,
    DROP CONSTRAINT reservations_check,
    ADD CONSTRAINT reservations_hold_is_its_bound CHECK (hold
        = greatest(price_prompt, price_cache_read, price_cache_write, price_cache_write_1h)
            * prompt_tokens_max
        + price_completion * choices * output_tokens_max
        + price_image * images + price_web_search * web_searches + price_request);
"""


def upgrade() -> None:
    op.execute(_SQL)
