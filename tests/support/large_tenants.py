"""Creates many organizations with their projects, keys and policies, by SQL."""

from typing import LiteralString

from tollkeeper.database.database import Connection


async def fill_tenants(connection: Connection, *, organizations: int, policies_each: int) -> None:
    """Creates organizations with an account, a project, a key of each kind and enforcing policies."""
    for statement in _STATEMENTS:
        await connection.execute(
            statement, {"organizations": organizations, "policies": policies_each}, prepare=False
        )


_STATEMENTS: tuple[LiteralString, ...] = (
    """
    CREATE TEMP TABLE made AS
    SELECT n, gen_random_uuid() AS organization, gen_random_uuid() AS project,
        gen_random_uuid() AS key
    FROM generate_series(1, %(organizations)s) AS n
    """,
    "INSERT INTO organizations SELECT organization, 'Filled ' || n, now() FROM made",
    "INSERT INTO accounts (organization_id, epoch) SELECT organization, 1 FROM made",
    "INSERT INTO projects SELECT organization, project, 'Site', now() FROM made",
    "INSERT INTO project_accounts (organization_id, project_id) SELECT organization, project FROM made",
    """
    INSERT INTO project_keys (organization_id, id, project_id, name, digest, redacted_value,
        permissions, created_at)
    SELECT organization, key, project, 'app', sha256(convert_to(key::text, 'UTF8')), 'tkp_...', '{}',
        now()
    FROM made
    """,
    """
    INSERT INTO admin_keys (organization_id, id, name, digest, redacted_value, permissions, created_at)
    SELECT organization, key, 'root', sha256(convert_to(key::text, 'UTF8')), 'tka_...', '{}', now()
    FROM made
    """,
    """
    INSERT INTO policies (organization_id, id, name, description, state, revision, created_at,
        updated_at, base_version, rule, direction, mode, scope, project_ids, threshold,
        current_version)
    SELECT organization, 'pol_' || n || '_' || p, 'Filled', '', 'enforcing', 1, now(), now(), 1,
        'Is it?', 'both', 'enforcing', 'organization', '{}', 5000, 1
    FROM made, generate_series(1, %(policies)s) AS p
    """,
    """
    INSERT INTO policy_versions (organization_id, policy_id, version, id, name, rule, direction,
        mode, scope, project_ids, threshold, published_at)
    SELECT organization_id, id, 1, 'ver_' || id, name, rule, direction, mode, scope, project_ids,
        threshold, now()
    FROM policies WHERE name = 'Filled'
    """,
    "DROP TABLE made",
)
