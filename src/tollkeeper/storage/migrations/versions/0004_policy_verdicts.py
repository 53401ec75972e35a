"""Create verdicts: one row for each policy and side of a call, with one partition for each UTC day.

They are written together with activity and kept as long; before, they were a column of activity.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
compatible_from = "0004"

_SQL = """
CREATE TABLE policy_verdicts (
    organization_id           uuid NOT NULL,
    request_id                uuid NOT NULL,
    policy_id                 text NOT NULL,
    version                   integer NOT NULL,
    direction                 text NOT NULL CHECK (direction IN ('request', 'response')),
    mode                      text NOT NULL CHECK (mode IN ('monitoring', 'enforcing')),
    -- NULL: the judge was down or late, or its answer could not be read.
    probability_basis_points  integer CHECK (probability_basis_points BETWEEN 0 AND 10000),
    threshold                 integer NOT NULL CHECK (threshold BETWEEN 1 AND 9999),
    matched                   boolean NOT NULL,
    duration_ms               bigint NOT NULL,
    judged_at                 timestamptz NOT NULL,
    PRIMARY KEY (organization_id, request_id, policy_id, direction, judged_at),
    CHECK (matched = (probability_basis_points IS NOT NULL AND probability_basis_points >= threshold))
) PARTITION BY RANGE (judged_at);

-- For the verdicts of one policy over time.
CREATE INDEX policy_verdicts_of_policy ON policy_verdicts (organization_id, policy_id, judged_at);

CREATE TABLE policy_verdicts_default PARTITION OF policy_verdicts DEFAULT;

INSERT INTO policy_verdicts
SELECT a.organization_id, a.request_id, v.policy_id, v.version, v.direction, v.mode,
    v.probability_basis_points, v.threshold_basis_points, v.matched, v.duration_ms, a.started_at
FROM activity a CROSS JOIN LATERAL jsonb_to_recordset(a.verdicts) AS v (policy_id text,
    version integer, direction text, mode text, probability_basis_points integer,
    threshold_basis_points integer, matched boolean, duration_ms bigint)
ON CONFLICT DO NOTHING;

ALTER TABLE activity DROP COLUMN verdicts;
"""


def upgrade() -> None:
    op.execute(_SQL)
