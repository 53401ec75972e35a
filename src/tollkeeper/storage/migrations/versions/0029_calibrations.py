"""Store calibrations of policies, which convert a judge's score to a probability.

It only adds. Older code compares the score itself with the threshold.
"""

from alembic import op

revision = "0029"
down_revision = "0028"
compatible_from = "0021"


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE policy_calibrations (
            organization_id uuid NOT NULL,
            policy_id       text NOT NULL,
            number          integer NOT NULL CHECK (number >= 1),
            judge_model     text NOT NULL,
            prompt_format   text NOT NULL,
            rule            text NOT NULL,
            calibration     jsonb NOT NULL,
            report          jsonb NOT NULL,
            created_at      timestamptz NOT NULL,
            PRIMARY KEY (organization_id, policy_id, number),
            FOREIGN KEY (organization_id, policy_id) REFERENCES policies (organization_id, id)
        )
        """
    )
    op.execute(
        """
        ALTER TABLE policies ADD COLUMN active_calibration integer,
            ADD CONSTRAINT policies_active_calibration
            FOREIGN KEY (organization_id, id, active_calibration)
            REFERENCES policy_calibrations (organization_id, policy_id, number)
        """
    )
