"""Store console sessions with their users.

It only adds. Consoles of older code keep their own sessions, and the table
`ended_console_sessions`.
"""

from alembic import op

revision = "0036"
down_revision = "0035"
compatible_from = "0021"

_SQL = """
CREATE TABLE console_sessions (
    -- The SHA-256 of the cookie.
    digest           bytea PRIMARY KEY,
    -- What the person signed in with: the operator token, or the settings of the identity provider.
    credential       bytea NOT NULL,
    subject          text NOT NULL,
    name             text NOT NULL,
    role             text NOT NULL CHECK (role IN ('organization', 'viewer', 'operator', 'owner')),
    organization     uuid CHECK ((organization IS NOT NULL) = (role = 'organization')),
    began_at         timestamptz NOT NULL,
    seen_at          timestamptz NOT NULL,
    expires_at       timestamptz NOT NULL
);
CREATE INDEX console_sessions_of_person ON console_sessions (subject, credential);
"""


def upgrade() -> None:
    op.execute(_SQL)
