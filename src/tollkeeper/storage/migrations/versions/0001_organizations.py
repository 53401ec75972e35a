"""Create organizations, projects, keys, policies, idempotency records and the cost roll-up.

Every primary key starts with the organization, so that the tables can be distributed by it.
"""

from alembic import op

revision = "0001"
down_revision = None
compatible_from = "0001"

_SQL = """
CREATE TABLE organizations (
    id          uuid PRIMARY KEY,
    name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 256),
    created_at  timestamptz NOT NULL
);

CREATE TABLE organization_checks (
    organization_id  uuid NOT NULL REFERENCES organizations (id),
    name             text NOT NULL,
    granted_at       timestamptz NOT NULL,
    PRIMARY KEY (organization_id, name)
);

CREATE TABLE projects (
    organization_id  uuid NOT NULL REFERENCES organizations (id),
    id               uuid NOT NULL,
    name             text NOT NULL CHECK (length(name) BETWEEN 1 AND 256),
    created_at       timestamptz NOT NULL,
    archived_at      timestamptz,
    PRIMARY KEY (organization_id, id)
);
CREATE INDEX projects_by_id ON projects (id);

CREATE TABLE project_keys (
    organization_id  uuid NOT NULL,
    id               uuid NOT NULL,
    project_id       uuid NOT NULL,
    name             text NOT NULL,
    digest           bytea NOT NULL CHECK (length(digest) = 32),
    redacted_value   text NOT NULL,
    permissions      text[] NOT NULL,
    created_at       timestamptz NOT NULL,
    last_used_at     timestamptz,
    expires_at       timestamptz,
    suspended_at     timestamptz,
    revoked_at       timestamptz,
    PRIMARY KEY (organization_id, id),
    UNIQUE (organization_id, digest),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id)
);
CREATE INDEX project_keys_by_digest ON project_keys (digest);
CREATE INDEX project_keys_by_id ON project_keys (id);
CREATE INDEX project_keys_of_project ON project_keys (organization_id, project_id, created_at, id);

CREATE TABLE admin_keys (
    organization_id  uuid NOT NULL REFERENCES organizations (id),
    id               uuid NOT NULL,
    name             text NOT NULL,
    digest           bytea NOT NULL CHECK (length(digest) = 32),
    redacted_value   text NOT NULL,
    permissions      text[] NOT NULL,
    created_at       timestamptz NOT NULL,
    last_used_at     timestamptz,
    expires_at       timestamptz,
    revoked_at       timestamptz,
    PRIMARY KEY (organization_id, id),
    UNIQUE (organization_id, digest)
);
CREATE INDEX admin_keys_by_digest ON admin_keys (digest);
CREATE INDEX admin_keys_by_id ON admin_keys (id);
CREATE INDEX admin_keys_in_order ON admin_keys (organization_id, created_at, id);

CREATE TABLE policies (
    organization_id  uuid NOT NULL REFERENCES organizations (id),
    id               text NOT NULL,
    name             text NOT NULL,
    description      text NOT NULL,
    state            text NOT NULL CHECK (state IN ('draft', 'monitoring', 'enforcing', 'paused')),
    revision         integer NOT NULL CHECK (revision >= 1),
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    rule             text NOT NULL,
    direction        text NOT NULL CHECK (direction IN ('request', 'response', 'both')),
    mode             text NOT NULL CHECK (mode IN ('monitoring', 'enforcing')),
    scope            text NOT NULL CHECK (scope IN ('organization', 'projects', 'unattached')),
    project_ids      uuid[] NOT NULL,
    threshold        integer CHECK (threshold BETWEEN 1 AND 9999),
    base_version     integer NOT NULL CHECK (base_version >= 0),
    current_version  integer CHECK (current_version >= 1),
    PRIMARY KEY (organization_id, id),
    CHECK ((state = 'draft') = (current_version IS NULL))
);

CREATE TABLE policy_versions (
    organization_id  uuid NOT NULL,
    policy_id        text NOT NULL,
    version          integer NOT NULL CHECK (version >= 1),
    id               text NOT NULL,
    rule             text NOT NULL,
    direction        text NOT NULL CHECK (direction IN ('request', 'response', 'both')),
    mode             text NOT NULL CHECK (mode IN ('monitoring', 'enforcing')),
    scope            text NOT NULL CHECK (scope IN ('organization', 'projects', 'unattached')),
    project_ids      uuid[] NOT NULL,
    threshold        integer CHECK (threshold BETWEEN 1 AND 9999),
    published_at     timestamptz NOT NULL,
    PRIMARY KEY (organization_id, policy_id, version),
    FOREIGN KEY (organization_id, policy_id) REFERENCES policies (organization_id, id)
);

CREATE TABLE idempotency_records (
    organization_id  uuid NOT NULL REFERENCES organizations (id),
    operation        text NOT NULL,
    key_digest       bytea NOT NULL,
    request_digest   bytea NOT NULL,
    resource_id      text NOT NULL,
    created_at       timestamptz NOT NULL,
    sealed_secret    bytea,
    PRIMARY KEY (organization_id, operation, key_digest)
);
CREATE INDEX idempotency_records_with_secret ON idempotency_records (created_at)
    WHERE sealed_secret IS NOT NULL;

CREATE TABLE cost_rollup (
    organization_id  uuid NOT NULL,
    day              integer NOT NULL CHECK (day >= 0),
    project_id       uuid NOT NULL,
    api_key_id       uuid NOT NULL,
    line_item        text NOT NULL,
    amount_picousd   numeric(38, 0) NOT NULL CHECK (amount_picousd >= 0),
    PRIMARY KEY (organization_id, day, project_id, api_key_id, line_item),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id)
);
"""


def upgrade() -> None:
    op.execute(_SQL)
