"""Keep the work of a call and of a console page small when there are many rows.

- A row of the cost roll-up no longer checks its project.
- The time of a key's last use is updated in place, because its page has free space.
- Accounts whose organization has published policies have an epoch above 0.
- The calls that a policy judged are found in the order of their time, and matches by their own index.
- Roll-ups contain the most expensive call of a step, so that a search for such calls skips other steps.
- Reports of days read calls by hour, and latencies by hour or, after two days, by day.
"""

from alembic import op

revision = "0021"
down_revision = "0019"
compatible_from = "0021"

_SQL = """
ALTER TABLE project_keys SET (fillfactor = 80);
-- Each row comes from a reservation, whose own reference is checked. This one would be checked, and
-- lock the project's row, for every line of a key's first call of a day.
ALTER TABLE cost_rollup DROP CONSTRAINT cost_rollup_organization_id_project_id_fkey;
CREATE INDEX policies_by_id ON policies (id);

UPDATE accounts a SET epoch = 1
WHERE epoch = 0 AND EXISTS (SELECT FROM policies p WHERE p.organization_id = a.organization_id
    AND p.current_version IS NOT NULL);

-- When the judged call began: the same as in its record of activity. The default is for processes
-- that were started before this migration.
ALTER TABLE policy_verdicts ADD COLUMN started_at timestamptz DEFAULT clock_timestamp();
UPDATE policy_verdicts v SET started_at = coalesce((
    SELECT a.started_at FROM activity a
    WHERE a.organization_id = v.organization_id AND a.request_id = v.request_id LIMIT 1), v.judged_at);
ALTER TABLE policy_verdicts ALTER COLUMN started_at SET NOT NULL;
DROP INDEX policy_verdicts_of_policy;
CREATE INDEX policy_verdicts_of_policy
    ON policy_verdicts (organization_id, policy_id, started_at, request_id);
CREATE INDEX policy_verdicts_matched
    ON policy_verdicts (organization_id, policy_id, started_at, request_id) WHERE matched;

ALTER TABLE traffic ADD COLUMN cost_max picousd NOT NULL DEFAULT 0;
ALTER TABLE traffic_by_backend ADD COLUMN cost_max picousd NOT NULL DEFAULT 0;
WITH dearest AS (
    SELECT organization_id, floor(extract(epoch FROM started_at) / 300)::integer AS step, project_id,
        api_key_id, model, status, max(cost) AS cost
    FROM activity WHERE cost > 0 GROUP BY 1, 2, 3, 4, 5, 6
)
UPDATE traffic t SET cost_max = d.cost FROM dearest d
WHERE (t.organization_id, t.step, t.project_id, t.api_key_id, t.model, t.status)
    = (d.organization_id, d.step, d.project_id, d.api_key_id, d.model, d.status);
WITH dearest AS (
    SELECT floor(extract(epoch FROM started_at) / 300)::integer AS step, model,
        coalesce(backend, '') AS backend, coalesce(replica, '') AS replica, status, max(cost) AS cost
    FROM activity WHERE cost > 0 GROUP BY 1, 2, 3, 4, 5
)
UPDATE traffic_by_backend t SET cost_max = d.cost FROM dearest d
WHERE (t.step, t.model, t.backend, t.replica, t.status)
    = (d.step, d.model, d.backend, d.replica, d.status);

CREATE TABLE traffic_by_hour (
    -- The first step of the hour.
    step               integer NOT NULL CHECK (step % 12 = 0),
    model              text NOT NULL,
    backend            text NOT NULL,
    replica            text NOT NULL,
    status             integer NOT NULL,
    requests           bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    duration_ms        bigint NOT NULL,
    first_pieces       bigint NOT NULL,
    first_piece_ms     bigint NOT NULL,
    streamed_tokens    bigint NOT NULL,
    streaming_ms       bigint NOT NULL,
    PRIMARY KEY (step, model, backend, replica, status)
) WITH (fillfactor = 70);
INSERT INTO traffic_by_hour
SELECT step - step % 12, model, backend, replica, status, sum(requests), sum(prompt_tokens),
    sum(completion_tokens), sum(cached_tokens), sum(duration_ms), sum(first_pieces),
    sum(first_piece_ms), sum(streamed_tokens), sum(streaming_ms)
FROM traffic_by_backend GROUP BY 1, 2, 3, 4, 5;
"""


def upgrade() -> None:
    # Executed by the driver directly, because SQLAlchemy would treat % and : as parameters.
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(_SQL)
