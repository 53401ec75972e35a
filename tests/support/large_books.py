"""Creates the ledger rows of many holds and settlements at once."""

from collections.abc import Sequence
from typing import LiteralString

from tests.support.ledger import LedgerTenant, another_project, make_tenant
from tollkeeper.core.months import Month
from tollkeeper.database.database import Database
from tollkeeper.database.watched_connection import allow_long_statements

# Every hold is 10. The costs are 0 (released) to 11 (an overage of 1), in turn.
_COSTS = 12
_HOLD = 10
_DAYS = 28


async def fill_books(
    database: Database,
    *,
    calls: int,
    organizations: int,
    months: Sequence[Month],
    projects: int = 1,
) -> list[LedgerTenant]:
    """Creates `calls` resolved calls, evenly distributed over new organizations, their projects and these
    months. Returns each project with its organization."""
    tenants = [await make_tenant(database, credit=calls * _COSTS) for _ in range(organizations)]
    for tenant in tenants[:]:
        tenants += [await another_project(database, tenant) for _ in range(projects - 1)]
    async with database.transaction() as connection:
        await allow_long_statements(connection, minutes=60)
        # No trigger runs, so foreign keys are not checked here; `ledger verify` checks the rows.
        await connection.execute("SET LOCAL session_replication_role TO replica")
        await connection.execute("SET LOCAL work_mem TO '64MB'")
        parameters = {
            "calls": calls,
            "organizations": [tenant.organization_id for tenant in tenants],
            "projects": [tenant.project_id for tenant in tenants],
            "keys": [tenant.key_id for tenant in tenants],
            "days": [month.first_day for month in months],
        }
        await connection.execute(_RESERVATIONS, parameters, prepare=False)
        for statement in _RESOLUTIONS, _OVERAGES, _ROLLUP, _PROJECT_ACCOUNTS, _ACCOUNTS:
            await connection.execute(
                statement, {"organizations": parameters["organizations"]}, prepare=False
            )
    async with database.transaction() as connection:
        await allow_long_statements(connection, minutes=60)
        await connection.execute("ANALYZE")
    return tenants


_RESERVATIONS: LiteralString = f"""
    INSERT INTO reservations (organization_id, id, project_id, api_key_id, process_id, model, hold,
        price_prompt, price_completion, price_image, price_request, price_cache_read,
        prompt_tokens_max, choices, output_tokens_max, images, held_at)
    SELECT (%(organizations)s::uuid[])[tenant],
        (lpad(to_hex(at_ms), 12, '0') || '7' || left(hash, 3) || '8' || substr(hash, 5, 15))::uuid,
        (%(projects)s::uuid[])[tenant], (%(keys)s::uuid[])[tenant], gen_random_uuid(),
        'example/chat' || (n / 11 %% 2), {_HOLD}, 0, 0, 0, {_HOLD}, 0, 0, 1, 0, 0,
        to_timestamp(at_ms / 1000.0)
    FROM (
        SELECT n, md5(n::text || random()::text) AS hash,
            1 + n %% cardinality(%(organizations)s::uuid[]) AS tenant, month,
            ((%(days)s::integer[])[month] + n / 7 %% {_DAYS}) * 86400000::bigint
                + n %% 86400000 AS at_ms
        FROM generate_series(1, %(calls)s) AS n,
            LATERAL (SELECT 1 + n / 13 %% cardinality(%(days)s::integer[]) AS month) AS chosen
    ) AS made
"""
_RESOLUTIONS: LiteralString = f"""
    INSERT INTO resolutions (organization_id, reservation_id, kind, hold, settled, released, prompt,
        completion, input_cache_read, image, request, other, estimated, resolved_by, day,
        resolved_at)
    SELECT organization_id, id, CASE cost WHEN 0 THEN 'released' ELSE 'settled' END, hold,
        least(hold, cost), hold - least(hold, cost), cost / 3, cost - cost / 3, 0, 0, 0, 0, false,
        'call', floor(extract(epoch FROM held_at) / 86400)::integer, held_at
    FROM (
        SELECT *, (row_number() OVER ()) %% {_COSTS} AS cost FROM reservations
        WHERE organization_id = ANY (%(organizations)s)
    ) AS r
"""
_OVERAGES: LiteralString = """
    INSERT INTO overages (organization_id, reservation_id, amount)
    SELECT organization_id, reservation_id, prompt + completion - hold FROM resolutions
    WHERE organization_id = ANY (%(organizations)s) AND prompt + completion > hold
"""
_ROLLUP: LiteralString = """
    INSERT INTO cost_rollup (organization_id, day, project_id, api_key_id, line_item, amount_picousd)
    SELECT d.organization_id, d.day, r.project_id, r.api_key_id, r.model || ', ' || dimension,
        sum(amount)
    FROM resolutions d
    JOIN reservations r ON r.organization_id = d.organization_id AND r.id = d.reservation_id,
    LATERAL (VALUES ('prompt', d.prompt), ('completion', d.completion)) AS line (dimension, amount)
    WHERE d.organization_id = ANY (%(organizations)s) AND amount > 0 GROUP BY 1, 2, 3, 4, 5
"""
_SPENT: LiteralString = """
    WITH spent AS (
        SELECT d.organization_id, r.project_id, d.prompt + d.completion AS cost,
            d.prompt + d.completion - d.settled AS overage
        FROM resolutions d
        JOIN reservations r ON r.organization_id = d.organization_id AND r.id = d.reservation_id
        WHERE d.organization_id = ANY (%(organizations)s)
    )
"""
_PROJECT_ACCOUNTS: LiteralString = (
    _SPENT
    + """
    , sums AS (
        SELECT organization_id, project_id, sum(cost) AS settled FROM spent GROUP BY 1, 2
    )
    UPDATE project_accounts a SET settled = s.settled
    FROM sums s WHERE a.organization_id = s.organization_id AND a.project_id = s.project_id
    """
)
_ACCOUNTS: LiteralString = (
    _SPENT
    + """
    , sums AS (
        SELECT organization_id, sum(cost) AS settled, sum(overage) AS overage
        FROM spent GROUP BY 1
    )
    UPDATE accounts a SET settled = s.settled, overage = s.overage,
        available = a.available - s.settled
    FROM sums s WHERE a.organization_id = s.organization_id
    """
)
