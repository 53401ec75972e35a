"""Add a price for images in answers.

It only adds. Older code leaves the new column at zero, and the sum that the constraint checks is
unchanged. A hold needs no column: its completion price is the higher of both.
"""

from alembic import op

revision = "0023"
down_revision = "0022"
compatible_from = "0021"

# NOT VALID, because existing rows satisfy both: their image output is zero.
_SQL = """
ALTER TABLE resolutions
    ADD COLUMN output_image picousd NOT NULL DEFAULT 0,
    ADD CONSTRAINT resolutions_output_image_check CHECK (output_image >= 0) NOT VALID,
    DROP CONSTRAINT resolutions_settled_is_cost,
    ADD CONSTRAINT resolutions_settled_is_cost CHECK (settled = least(hold, prompt + completion
        + input_cache_read + input_cache_write + input_audio + output_audio + output_image + image
        + request + web_search + other)) NOT VALID;
"""


def upgrade() -> None:
    op.execute(_SQL)
