"""Images in answers have a price of their own.

It only adds. Older code leaves the new column at zero, and the sum that the constraint checks is then
what it was. A hold needs no column: the price of its completion is the dearer one of both.
"""

from alembic import op

revision = "0023"
down_revision = "0022"
compatible_from = "0021"

# NOT VALID: rows that are there already fulfil both, because their image output is zero.
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
