"""Merge the constraints that forbid negative amounts, one for each table.

PostgreSQL reads the stored text of each constraint again for each statement that writes the table.
`least` ignores NULL, so a missing cap still satisfies the constraint. The zero is a text literal,
because PostgreSQL would convert an integer again for each statement.
"""

from alembic import op

revision = "0037"
down_revision = "0036"
compatible_from = "0021"

# NOT VALID, because existing rows satisfy the dropped constraints.
_SQL = """
ALTER TABLE accounts
    DROP CONSTRAINT accounts_held_check,
    DROP CONSTRAINT accounts_unsettled_check,
    DROP CONSTRAINT accounts_settled_check,
    DROP CONSTRAINT accounts_overage_check,
    DROP CONSTRAINT accounts_month_held_check,
    DROP CONSTRAINT accounts_month_settled_check,
    DROP CONSTRAINT accounts_cap_check,
    DROP CONSTRAINT accounts_cap_excess_check,
    DROP CONSTRAINT accounts_overage_bound_check,
    DROP CONSTRAINT accounts_refunded,
    ADD CONSTRAINT accounts_not_negative CHECK (least(held, unsettled, settled, overage, month_held,
        month_settled, cap, cap_excess, overage_bound, refunded) >= '0') NOT VALID;

ALTER TABLE project_accounts
    DROP CONSTRAINT project_accounts_held_check,
    DROP CONSTRAINT project_accounts_unsettled_check,
    DROP CONSTRAINT project_accounts_settled_check,
    DROP CONSTRAINT project_accounts_month_held_check,
    DROP CONSTRAINT project_accounts_month_settled_check,
    DROP CONSTRAINT project_accounts_cap_check,
    DROP CONSTRAINT project_accounts_cap_excess_check,
    ADD CONSTRAINT project_accounts_not_negative CHECK (least(held, unsettled, settled, month_held,
        month_settled, cap, cap_excess) >= '0') NOT VALID;

ALTER TABLE resolutions
    DROP CONSTRAINT resolutions_settled_check,
    DROP CONSTRAINT resolutions_released_check,
    DROP CONSTRAINT resolutions_prompt_check,
    DROP CONSTRAINT resolutions_completion_check,
    DROP CONSTRAINT resolutions_input_cache_read_check,
    DROP CONSTRAINT resolutions_input_cache_write_check,
    DROP CONSTRAINT resolutions_input_audio_check,
    DROP CONSTRAINT resolutions_output_audio_check,
    DROP CONSTRAINT resolutions_output_image_check,
    DROP CONSTRAINT resolutions_image_check,
    DROP CONSTRAINT resolutions_request_check,
    DROP CONSTRAINT resolutions_web_search_check,
    DROP CONSTRAINT resolutions_verdict_check,
    DROP CONSTRAINT resolutions_other_check,
    ADD CONSTRAINT resolutions_not_negative CHECK (least(settled, released, prompt, completion,
        input_cache_read, input_cache_write, input_audio, output_audio, output_image, image, request,
        web_search, verdict, other) >= '0') NOT VALID;
"""


def upgrade() -> None:
    op.execute(_SQL)
