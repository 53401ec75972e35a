"""A gateway over scripted upstreams, with tenants that have money to spend."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from tests.gateway import Gateway, Tenant, serving
from tests.upstream import Upstream
from tollkeeper.settings import Settings
from tollkeeper.storage.verification import find_differences

MODEL = "example/chat"
PROMPT_PRICE = 200_000  # picousd a token
COMPLETION_PRICE = 800_000


def lab_settings(data_dir: Path, *urls: str, **changes: Any) -> Settings:
    backend = {"name": "scripted", "kind": "openai", "urls": urls, **changes.pop("backend", {})}
    model = {
        "id": MODEL,
        "backend": "scripted",
        "upstream_model": "upstream-chat",
        "context_length": 4096,
        "max_output_length": 2048,
        "supported_sampling_parameters": ["temperature", "top_p", "seed", "stop"],
        "supported_features": ["tools", "json_mode", "structured_outputs", "logprobs", "reasoning"],
        "pricing": {"prompt": "0.0000002", "completion": "0.0000008"},
        **changes.pop("model", {}),
    }
    limits = {"inference_deadline_s": 5, "drain_s": 1, **changes.pop("limits", {})}
    return Settings(
        database={"data_dir": data_dir, "pool_size": 8},
        backends=[backend],
        models=[model],
        limits=limits,
        **changes,
    )


@dataclass(frozen=True)
class Lab:
    gateway: Gateway
    upstream: Upstream
    tenant: Tenant

    async def chat(self, **fields: Any) -> httpx2.Response:
        headers = fields.pop("headers", self.tenant.as_customer)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], **fields}
        return await self.gateway.client.post("/v1/chat/completions", json=body, headers=headers)

    async def balance(self) -> dict[str, int]:
        """The account with everything folded in, after every call has ended."""
        await self.gateway.services.inference.drain(5)
        await self.gateway.services.ledger.drain()
        async with self.gateway.services.database.snapshot() as connection:
            assert await find_differences(connection, age_s=0, lease_s=3600) == []
            cursor = await connection.execute(_BALANCE, (self.tenant.organization_id,))
            row = await cursor.fetchone()
        assert row is not None
        return dict(zip(("granted", "held", "unsettled", "settled", "resolutions"), row, strict=True))

    async def grant(self, amount: int) -> None:
        async with self.gateway.services.database.transaction() as connection:
            await connection.execute(_GRANT, (self.tenant.organization_id, uuid4(), amount))
            await connection.execute(
                "UPDATE accounts SET granted = granted + %s, available = available + %s"
                " WHERE organization_id = %s",
                (amount, amount, self.tenant.organization_id),
            )


_GRANT = "INSERT INTO grants (organization_id, id, amount, note) VALUES (%s, %s, %s, 'test')"
_BALANCE = """
    SELECT coalesce((SELECT sum(amount) FROM grants g WHERE g.organization_id = o.id), 0),
        coalesce(sum(r.hold) FILTER (WHERE d.kind IS NULL AND m.reason IS NULL), 0),
        coalesce(sum(r.hold) FILTER (WHERE d.kind IS NULL AND m.reason IS NOT NULL), 0),
        coalesce(sum(d.prompt + d.completion + d.input_cache_read + d.image + d.request), 0),
        count(d.kind)
    FROM organizations o
    LEFT JOIN reservations r ON r.organization_id = o.id
    LEFT JOIN resolutions d ON d.organization_id = o.id AND d.reservation_id = r.id
    LEFT JOIN unsettled_marks m ON m.organization_id = o.id AND m.reservation_id = r.id
    WHERE o.id = %s GROUP BY o.id
"""


@asynccontextmanager
async def laboratory(
    data_dir: Path, conninfo: str, upstream: Upstream, *, credit: int = 10**13, **changes: Any
) -> AsyncIterator[Lab]:
    settings = lab_settings(data_dir, upstream.url, **changes)
    async with serving(settings, conninfo) as gateway:
        lab = Lab(gateway, upstream, await gateway.make_tenant())
        if credit:
            await lab.grant(credit)
        yield lab
