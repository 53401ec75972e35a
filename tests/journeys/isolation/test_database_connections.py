"""Tests that requests that wait for one account take no database connections from other tenants."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from tests.support.gateway import Gateway, Tenant, idempotency_key
from tests.support.scripted_gateway import MODEL, ScriptedGateway, answering_gateway

# Several times the size of the connection pool.
_REQUESTS = 40
_WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND state = 'active'
"""


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(data_dir, conninfo) as running:
        yield running


async def _count_tokens(gateway: Gateway, tenant: Tenant) -> httpx2.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    return await gateway.client.post(
        "/v1/messages/count_tokens", json=body, headers=tenant.as_customer
    )


async def _archive(gateway: Gateway, tenant: Tenant) -> httpx2.Response:
    return await gateway.client.post(
        f"/v1/organization/projects/{tenant.project_id}/archive", headers=tenant.as_admin
    )


async def _requests_of_every_kind(gateway: Gateway, tenant: Tenant) -> list[httpx2.Response]:
    """Makes one request for each use of the database that a client can cause."""
    policy = await gateway.make_policy(tenant)
    path, project = f"/v1/organization/policies/{policy['id']}", tenant.project_id
    edit: dict[str, Any] = {"revision": 1, "name": "Other"}
    creating = {**tenant.as_admin, **idempotency_key()}
    client = gateway.client
    return [
        await _count_tokens(gateway, tenant),
        await client.get(f"/v1/models/{MODEL.replace('/', '%2F')}", headers=tenant.as_customer),
        await client.get(path, headers=tenant.as_admin),
        await client.patch(path, json=edit, headers=tenant.as_admin),
        await client.get(
            f"/v1/organization/projects/{project}/effective_policies", headers=tenant.as_admin
        ),
        await client.post(
            f"/v1/organization/projects/{project}/api_keys", json={"name": "k"}, headers=creating
        ),
        await client.get("/v1/organization/admin_api_keys", headers=tenant.as_admin),
        await client.get("/v1/organization/costs?start_time=0", headers=tenant.as_admin),
        await _archive(gateway, tenant),
    ]


@pytest.mark.parametrize("flood", [_count_tokens, _archive], ids=["count_tokens", "archive"])
async def test_requests_that_wait_for_an_account_keep_nobody_else_waiting(
    shared: ScriptedGateway, conninfo: str, flood: Any
) -> None:
    """The test locks the account, as many requests of a hostile tenant would lock it."""
    hostile, quiet = await shared.with_tenant(), await shared.with_tenant()
    async with (
        await psycopg.AsyncConnection.connect(conninfo) as holder,
        hostile.another_client() as hostile_client,
    ):
        await holder.execute(
            "SELECT FROM accounts WHERE organization_id = %s FOR UPDATE",
            (hostile.tenant.organization_id,),
        )
        gateway = hostile_client.gateway
        waiting = [asyncio.create_task(flood(gateway, hostile.tenant)) for _ in range(_REQUESTS)]
        async with asyncio.timeout(20), await psycopg.AsyncConnection.connect(conninfo) as onlooker:
            while (await (await onlooker.execute(_WAITING)).fetchone()) == (0,):
                await onlooker.rollback()
                await asyncio.sleep(0.01)
        answer = await quiet.chat()
        answers = await _requests_of_every_kind(quiet.gateway, quiet.tenant)
        assert [found.status_code for found in (answer, *answers)] == [200] * 10
        # The process's own work does not wait for a turn in the queue.
        async with shared.gateway.services.database.autocommit() as connection:
            await connection.execute("SELECT 1")
        assert not all(task.done() for task in waiting), "nobody has waited"
        await holder.rollback()
        await asyncio.gather(*waiting)
