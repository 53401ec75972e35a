"""Store judge usage by organization, backend, model and UTC day.

It only adds. Older code does not meter judges.
"""

from alembic import op

revision = "0031"
down_revision = "0029"
compatible_from = "0021"


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE judge_usage (
            -- All zeros: an operator who tried a rule.
            organization_id      uuid NOT NULL,
            -- Counted since 1970-01-01.
            day                  integer NOT NULL,
            backend              text NOT NULL,
            -- As the backend calls it.
            model                text NOT NULL,
            questions            bigint NOT NULL,
            -- Of these, those whose tokens are not known. They are not in the sums.
            unreported_questions bigint NOT NULL,
            input_tokens         bigint NOT NULL,
            cached_tokens        bigint NOT NULL,
            cache_write_tokens   bigint NOT NULL,
            output_tokens        bigint NOT NULL,
            -- By the prices that the catalogue has for the same model of the same backend.
            cost                 picousd NOT NULL,
            -- The sum of the backend's own prices, for the questions in which it reported one.
            reported_cost        picousd NOT NULL,
            PRIMARY KEY (organization_id, day, backend, model)
        )
        """
    )
