"""Store the first judge's score in verdicts, and the time of a policy's calibration.

It only adds. Older code asks one judge and leaves both empty.
"""

from alembic import op

revision = "0032"
down_revision = "0031"
compatible_from = "0021"


def upgrade() -> None:
    op.execute("ALTER TABLE policy_verdicts ADD COLUMN first_basis_points integer")
    # When the active calibration was activated.
    op.execute("ALTER TABLE policies ADD COLUMN calibrated_at timestamptz")
