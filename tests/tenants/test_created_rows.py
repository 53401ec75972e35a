"""Tests that `Gateway.make_tenant`, which writes a tenant in one statement, writes the same rows as
the services."""

from typing import Any

from psycopg import sql

from tests.support.gateway import Gateway
from tollkeeper.core.access import OrganizationId

_TABLES = ("accounts", "projects", "project_accounts", "admin_keys", "project_keys", "grants")
# Columns that differ for every tenant, or that are set when the account is locked the first time.
_OWN = {"id", "organization_id", "project_id", "digest", "redacted_value", "month"}
_TIMES = {"created_at", "granted_at"}


async def test_rows_are_those_of_the_services(gateway: Gateway) -> None:
    recorded = await gateway.make_recorded_tenant()
    await gateway.services.accounts.credit_grant(recorded.organization_id, 7, "test")
    tenant = await gateway.make_tenant(credit=7)
    written = await _rows_of(gateway, recorded.organization_id)
    assert all(written.values()), written
    assert await _rows_of(gateway, tenant.organization_id) == written


async def test_a_tenant_without_credit_has_no_grant(gateway: Gateway) -> None:
    tenant = await gateway.make_tenant()
    assert (await _rows_of(gateway, tenant.organization_id))["grants"] == []


async def _rows_of(gateway: Gateway, organization_id: OrganizationId) -> dict[str, list[Any]]:
    found = {}
    async with gateway.services.database.autocommit() as connection:
        for table in _TABLES:
            cursor = await connection.execute(
                sql.SQL("SELECT to_jsonb(r) FROM {} r WHERE organization_id = %s").format(
                    sql.Identifier(table)
                ),
                (organization_id,),
            )
            found[table] = [_comparable(row[0]) for row in await cursor.fetchall()]
    return found


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: "set" if name in _TIMES and value is not None else value
        for name, value in row.items()
        if name not in _OWN
    }
