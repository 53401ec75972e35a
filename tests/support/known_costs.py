"""Creates an organization with known costs, and requests reports about them."""

from dataclasses import dataclass
from typing import Any

import httpx2

from tests.support.gateway import Gateway, Tenant
from tollkeeper.core.access import KeyId, ProjectId

DAY_S = 86400
FIRST_DAY = 20_000
COSTS = "/v1/organization/costs"
_LINE_ITEMS = ("acme/large, prompt", "acme/large, completion", "small, prompt")


@dataclass(frozen=True)
class Spent:
    day: int
    project_id: ProjectId
    api_key_id: KeyId
    line_item: str
    picousd: int


@dataclass(frozen=True)
class KnownCosts:
    """Contains costs of two projects with two keys each, on ten days except the fourth."""

    gateway: Gateway
    tenant: Tenant
    projects: tuple[ProjectId, ProjectId]
    keys: tuple[KeyId, ...]
    spent: tuple[Spent, ...]

    async def report(self, query: str = "", *, days: int = 10) -> httpx2.Response:
        start, end = FIRST_DAY * DAY_S, (FIRST_DAY + days) * DAY_S
        joined = f"&{query}" if query else ""
        return await self.raw(f"start_time={start}&end_time={end}{joined}")

    async def raw(self, query: str) -> httpx2.Response:
        return await self.gateway.client.get(f"{COSTS}?{query}", headers=self.tenant.as_admin)

    async def pages(self, query: str, *limits: int) -> list[dict[str, Any]]:
        """Returns all pages. Page i uses the i-th limit, and pages after the last limit use the last limit."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            limit = limits[min(len(found), len(limits) - 1)]
            answer = await self.report(f"limit={limit}{query}{cursor}")
            assert answer.status_code == 200, answer.text
            found.append(answer.json())
            if not found[-1]["has_more"]:
                return found
            cursor = f"&page={found[-1]['next_page']}"


async def make_known_costs(gateway: Gateway) -> KnownCosts:
    tenant = await gateway.make_tenant()
    services = gateway.services
    second = await services.projects.project_create(tenant.organization_id, "second")
    projects = (tenant.project_id, second.id)
    keys = []
    for project_id in projects:
        for name in ("a", "b"):
            key, _ = await services.project_keys.project_key_create_by_operator(
                project_id, name, None, None
            )
            keys.append((project_id, key.id))
    spent = tuple(
        Spent(FIRST_DAY + day, project_id, key_id, line_item, amount)
        for day in range(10)
        if day != 3
        for amount, (project_id, key_id, line_item) in enumerate(
            ((*owner, item) for owner in keys for item in _LINE_ITEMS),
            start=10**day * 7 + 1,
        )
    )
    await write_costs(gateway, tenant, spent)
    return KnownCosts(gateway, tenant, projects, tuple(key_id for _, key_id in keys), spent)


async def write_costs(gateway: Gateway, tenant: Tenant, spent: tuple[Spent, ...]) -> None:
    async with (
        gateway.services.database.transaction() as connection,
        connection.cursor() as cursor,
    ):
        await cursor.executemany(
            """
            INSERT INTO cost_rollup (organization_id, day, project_id, api_key_id, line_item,
                                     amount_picousd)
            VALUES (%s, %s, %s, %s, %s, %s)
            """,
            [
                (
                    tenant.organization_id,
                    row.day,
                    row.project_id,
                    row.api_key_id,
                    row.line_item,
                    row.picousd,
                )
                for row in spent
            ],
        )
