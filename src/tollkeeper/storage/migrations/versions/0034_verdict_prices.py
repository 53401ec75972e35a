"""Store prices of verdicts: how many a hold covers, and their cost.

It only adds. Older code leaves the new columns empty or at zero, and the sums that the constraints
check are unchanged.
"""

from alembic import op

revision = "0034"
down_revision = "0033"
compatible_from = "0021"

# NOT VALID, because existing rows satisfy the constraints: they have no verdicts.
_SQL = """
ALTER TABLE reservations
    -- NULL: verdicts have no price.
    ADD COLUMN price_verdict picousd,
    ADD COLUMN verdicts_max integer,
    DROP CONSTRAINT reservations_hold_is_its_bound,
    ADD CONSTRAINT reservations_hold_is_its_bound CHECK (hold
        = greatest(price_prompt, price_cache_read, price_cache_write, price_cache_write_1h)
            * prompt_tokens_max
        + greatest(0, price_input_audio - greatest(price_prompt, price_cache_read,
            price_cache_write, price_cache_write_1h)) * input_audio_tokens_max
        + price_completion * choices * output_tokens_max
        + greatest(0, price_output_audio - price_completion) * choices * output_audio_tokens_max
        + price_image * images + price_web_search * web_searches + price_request
        + coalesce(price_verdict * verdicts_max, 0)) NOT VALID;

ALTER TABLE resolutions
    ADD COLUMN verdict picousd NOT NULL DEFAULT 0,
    ADD CONSTRAINT resolutions_verdict_check CHECK (verdict >= 0) NOT VALID,
    DROP CONSTRAINT resolutions_settled_is_cost,
    ADD CONSTRAINT resolutions_settled_is_cost CHECK (settled = least(hold, prompt + completion
        + input_cache_read + input_cache_write + input_audio + output_audio + output_image + image
        + request + web_search + verdict + other)) NOT VALID;

-- What of the cost is the price of verdicts; NULL: nothing.
ALTER TABLE activity ADD COLUMN verdict_cost picousd;
"""


def upgrade() -> None:
    op.execute(_SQL)
