"""Requests a cost report from the running gateway with an admin key."""

import asyncio
import time
import urllib.request
from collections.abc import Callable
from uuid import UUID

from bench.gateway import Running, Tenant
from tollkeeper.core.access import ADMIN_PERMISSIONS, OrganizationId
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.database.database import Database
from tollkeeper.tenants.admin_keys import AdminKeys

_DAYS = 31


def admin_report(gateway: Running, tenant: Tenant) -> Callable[[], None]:
    key = asyncio.run(_admin_key(gateway.conninfo, tenant))
    start = int(time.time()) - _DAYS * 86400
    request = urllib.request.Request(
        f"http://127.0.0.1:{gateway.port}/v1/organization/costs"
        f"?start_time={start}&limit={_DAYS}&group_by=line_item",
        headers={"Authorization": f"Bearer {key}"},
    )

    def ask() -> None:
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b"organization.costs.result" in answer.read()

    return ask


async def _admin_key(conninfo: str, tenant: Tenant) -> str:
    database = Database(conninfo, pool_size=2, pool_timeout_s=10, statement_timeout_s=10)
    await database.open()
    try:
        keys = AdminKeys(database, unix_now)
        organization_id = OrganizationId(UUID(tenant.organization_id))
        _, value = await keys.admin_key_create(organization_id, "bench", ADMIN_PERMISSIONS, None)
        return value
    finally:
        await database.close()
