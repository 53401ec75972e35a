"""Create roll-ups of activity and verdicts, which reports read instead of the records.

The statement that writes the records also writes these. `traffic` counts calls by tenant in steps
of five minutes; `traffic_by_backend` and `traffic_latency` do the same by model and backend;
`verdict_counts` has one row for each day and probability of a policy.
"""

from alembic import op

revision = "0013"
down_revision = "0012"
compatible_from = "0013"

_SQL = """
ALTER TABLE activity
    -- The time until the call went to its backend, and how long the backend worked.
    ADD COLUMN dispatched_ms bigint,
    ADD COLUMN upstream_ms bigint,
    -- What of the call's time neither the backend nor the judge took.
    ADD COLUMN overhead_us bigint;

CREATE TABLE traffic (
    organization_id    uuid NOT NULL,
    -- Steps of 300 seconds since the epoch.
    step               integer NOT NULL,
    project_id         uuid NOT NULL,
    api_key_id         uuid NOT NULL,
    model              text NOT NULL,
    status             integer NOT NULL,
    requests           bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    PRIMARY KEY (organization_id, step, project_id, api_key_id, model, status)
) WITH (fillfactor = 70);
CREATE INDEX traffic_in_time ON traffic USING brin (step);

CREATE TABLE traffic_by_backend (
    step               integer NOT NULL,
    model              text NOT NULL,
    -- Empty where the call reached no backend.
    backend            text NOT NULL,
    replica            text NOT NULL,
    status             integer NOT NULL,
    requests           bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    duration_ms        bigint NOT NULL,
    -- Of calls that delivered a first piece: their number, the sum of the times until it came, and
    -- the tokens that followed with the time they took.
    first_pieces       bigint NOT NULL,
    first_piece_ms     bigint NOT NULL,
    streamed_tokens    bigint NOT NULL,
    streaming_ms       bigint NOT NULL,
    PRIMARY KEY (step, model, backend, replica, status)
) WITH (fillfactor = 70);

CREATE TABLE traffic_latency (
    step      integer NOT NULL,
    model     text NOT NULL,
    backend   text NOT NULL,
    measure   text NOT NULL CHECK (measure IN ('duration', 'first_piece', 'overhead')),
    -- Times up to 1.1 ^ rung milliseconds; microseconds for `overhead`.
    rung      integer NOT NULL,
    requests  bigint NOT NULL,
    PRIMARY KEY (step, model, backend, measure, rung)
) WITH (fillfactor = 70);

CREATE TABLE verdict_counts (
    organization_id           uuid NOT NULL,
    policy_id                 text NOT NULL,
    -- Days since the epoch.
    day                       integer NOT NULL,
    version                   integer NOT NULL,
    direction                 text NOT NULL,
    -- -1 where the judge gave none.
    probability_basis_points  integer NOT NULL,
    asked                     bigint NOT NULL,
    matched                   bigint NOT NULL,
    PRIMARY KEY (organization_id, policy_id, day, version, direction, probability_basis_points)
) WITH (fillfactor = 70);

INSERT INTO traffic
SELECT organization_id, floor(extract(epoch FROM started_at) / 300)::integer, project_id, api_key_id,
    model, status, count(*), coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0),
    coalesce(sum(cached_tokens), 0)
FROM activity GROUP BY 1, 2, 3, 4, 5, 6;

INSERT INTO traffic_by_backend
SELECT floor(extract(epoch FROM started_at) / 300)::integer, model, coalesce(backend, ''),
    coalesce(replica, ''), status, count(*), coalesce(sum(prompt_tokens), 0),
    coalesce(sum(completion_tokens), 0), coalesce(sum(cached_tokens), 0), sum(duration_ms),
    count(first_piece_ms), coalesce(sum(first_piece_ms), 0),
    coalesce(sum(completion_tokens) FILTER (WHERE streamed AND duration_ms > first_piece_ms), 0),
    coalesce(sum(duration_ms - first_piece_ms) FILTER (
        WHERE streamed AND duration_ms > first_piece_ms AND completion_tokens > 0), 0)
FROM activity GROUP BY 1, 2, 3, 4, 5;

INSERT INTO traffic_latency
SELECT floor(extract(epoch FROM started_at) / 300)::integer, model, coalesce(backend, ''), measure,
    ceil(ln(greatest(ms, 1)) / ln(1.1::float8))::integer, count(*)
FROM activity, LATERAL (VALUES ('duration', duration_ms), ('first_piece', first_piece_ms))
    AS taken (measure, ms)
WHERE ms IS NOT NULL GROUP BY 1, 2, 3, 4, 5;

INSERT INTO verdict_counts
SELECT organization_id, policy_id, floor(extract(epoch FROM judged_at) / 86400)::integer, version,
    direction, coalesce(probability_basis_points, -1), count(*), count(*) FILTER (WHERE matched)
FROM policy_verdicts GROUP BY 1, 2, 3, 4, 5, 6;
"""


def upgrade() -> None:
    op.execute(_SQL)
