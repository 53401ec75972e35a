"""Add audio prices and price variants: a call's price may depend on the length of its prompt and
the service tier of its answer.

The price columns contain the prices of the hold's computation, the highest that may apply; all
other prices that may apply are in `price_variants`.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
compatible_from = "0008"

_SQL = """
ALTER TABLE reservations
    ADD COLUMN price_input_audio picousd NOT NULL DEFAULT 0,
    ADD COLUMN price_output_audio picousd NOT NULL DEFAULT 0,
    ADD COLUMN input_audio_tokens_max bigint NOT NULL DEFAULT 0,
    ADD COLUMN output_audio_tokens_max bigint NOT NULL DEFAULT 0,
    -- NULL where the model has one price only.
    ADD COLUMN price_variants jsonb,
    DROP CONSTRAINT reservations_hold_is_its_bound,
    ADD CONSTRAINT reservations_hold_is_its_bound CHECK (hold
        = greatest(price_prompt, price_cache_read, price_cache_write, price_cache_write_1h)
            * prompt_tokens_max
        + greatest(0, price_input_audio - greatest(price_prompt, price_cache_read,
            price_cache_write, price_cache_write_1h)) * input_audio_tokens_max
        + price_completion * choices * output_tokens_max
        + greatest(0, price_output_audio - price_completion) * choices * output_audio_tokens_max
        + price_image * images + price_web_search * web_searches + price_request);

ALTER TABLE resolutions
    ADD COLUMN input_audio picousd NOT NULL DEFAULT 0 CHECK (input_audio >= 0),
    ADD COLUMN output_audio picousd NOT NULL DEFAULT 0 CHECK (output_audio >= 0),
    DROP CONSTRAINT resolutions_settled_is_cost,
    ADD CONSTRAINT resolutions_settled_is_cost CHECK (settled = least(hold, prompt + completion
        + input_cache_read + input_cache_write + input_audio + output_audio + image + request
        + web_search + other));

ALTER TABLE activity
    ADD COLUMN input_audio_tokens bigint,
    ADD COLUMN output_audio_tokens bigint,
    -- What the answer named, by which it was charged.
    ADD COLUMN service_tier text;
"""


def upgrade() -> None:
    op.execute(_SQL)
