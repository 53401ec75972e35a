"""Tests the admin client of the OpenAI SDK: its requests, results, exceptions and retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from decimal import Decimal

import httpx2
import pytest

from tests.support.gateway import Gateway, Tenant, idempotency_key
from tests.support.known_costs import DAY_S, FIRST_DAY, make_known_costs
from tests.support.sdks import openai

_NOBODY = "7f3d2f7e-5a0c-4a5e-9d5f-0d3c1b2a4e5f"


@dataclass
class Watched:
    """An SDK client, and the requests that it sent, including retries."""

    client: openai.AsyncOpenAI
    sent: list[httpx2.Request] = field(default_factory=list)


Connect = Callable[[str], Watched]


@pytest.fixture
async def connect(gateway: Gateway) -> AsyncIterator[Connect]:
    clients: list[Watched] = []

    def make(admin_key: str) -> Watched:
        sent: list[httpx2.Request] = []

        async def note(request: httpx2.Request) -> None:
            sent.append(request)

        http = httpx2.AsyncClient(event_hooks={"request": [note]})
        client = openai.AsyncOpenAI(
            api_key="unused",
            admin_api_key=admin_key,
            base_url=f"{gateway.base_url}/v1",
            http_client=http,
        )
        clients.append(Watched(client, sent))
        return clients[-1]

    yield make
    for watched in clients:
        await watched.client.close()


async def test_lists_admin_keys_page_by_page(
    gateway: Gateway, tenant: Tenant, connect: Connect
) -> None:
    for number in range(5):
        await gateway.services.admin_keys.admin_key_create(
            tenant.organization_id, f"key {number}", (), 86400
        )
    sdk = connect(tenant.admin_key)
    listed = sdk.client.admin.organization.admin_api_keys.list(limit=2)
    found = [key async for key in listed]
    assert [key.name for key in found] == ["root", *(f"key {number}" for number in range(5))]
    assert len(sdk.sent) == 3
    root = found[0]
    assert root.object == "organization.admin_api_key"
    assert root.redacted_value == tenant.admin_key[:8] + "..."
    assert (root.owner.id, root.owner.type) == (str(tenant.organization_id), "organization")
    assert (root.expires_at, isinstance(found[1].expires_at, int)) == (None, True)
    newest = await sdk.client.admin.organization.admin_api_keys.list(limit=1, order="desc")
    assert [key.name for key in newest.data] == ["key 4"]


async def test_lists_with_no_cursor_given(tenant: Tenant, connect: Connect) -> None:
    """The SDK's signature allows `after=None`, which a loop passes before it has a cursor."""
    sdk = connect(tenant.admin_key)
    page = await sdk.client.admin.organization.admin_api_keys.list(after=None)
    assert [key.name for key in page.data] == ["root"]


async def test_deletes_admin_keys(gateway: Gateway, tenant: Tenant, connect: Connect) -> None:
    doomed, value = await gateway.services.admin_keys.admin_key_create(
        tenant.organization_id, "doomed", (), None
    )
    sdk = connect(tenant.admin_key)
    keys = sdk.client.admin.organization.admin_api_keys
    deleted = await keys.delete(str(doomed.id))
    assert (deleted.id, deleted.deleted) == (str(doomed.id), True)
    assert deleted.object == "organization.admin_api_key.deleted"
    with pytest.raises(openai.NotFoundError) as again:
        await keys.delete(str(doomed.id))
    assert (again.value.code, again.value.param) == ("not_found", "api_key_id")
    with pytest.raises(openai.AuthenticationError):
        await connect(value).client.admin.organization.admin_api_keys.list()


async def test_archives_a_project(tenant: Tenant, connect: Connect) -> None:
    sdk = connect(tenant.admin_key)
    archived = await sdk.client.admin.organization.projects.archive(str(tenant.project_id))
    assert archived.id == str(tenant.project_id)
    assert sdk.sent[0].headers["content-type"] == "application/json"
    assert sdk.sent[0].content == b""


async def test_reads_costs_with_arrays(gateway: Gateway, connect: Connect) -> None:
    costs = await make_known_costs(gateway)
    sdk = connect(costs.tenant.admin_key)
    wanted = [str(costs.keys[0]), str(costs.keys[3])]
    start, end = FIRST_DAY * DAY_S, (FIRST_DAY + 10) * DAY_S
    total = Decimal(0)
    page: str | openai.Omit = openai.omit
    while True:
        found = await sdk.client.admin.organization.usage.costs(
            start_time=start,
            end_time=end,
            bucket_width="1d",
            api_key_ids=wanted,
            project_ids=[str(project) for project in costs.projects],
            group_by=["api_key_id", "line_item"],
            limit=4,
            page=page,
        )
        for bucket in found.data:
            for result in bucket.results:
                assert result.object == "organization.costs.result"
                assert result.api_key_id in wanted
                assert result.amount is not None
                assert result.amount.currency == "usd"
                total += Decimal(str(result.amount.value))
        if not found.has_more:
            break
        assert found.next_page is not None
        page = found.next_page
    assert len(sdk.sent) == 3
    expected = sum(row.picousd for row in costs.spent if str(row.api_key_id) in wanted)
    assert total * 10**12 == expected


async def test_error_classes(gateway: Gateway, tenant: Tenant, connect: Connect) -> None:
    sdk = connect(tenant.admin_key)
    limited = await gateway.admin_key(tenant, "policies:read")
    weak = connect(limited["Authorization"].removeprefix("Bearer "))
    stranger = connect("tka_nothing")
    cases: list[tuple[Watched, type[openai.APIStatusError], str, str, str | None]] = [
        (stranger, openai.AuthenticationError, "invalid_api_key", "authentication_error", None),
        (weak, openai.PermissionDeniedError, "permission_denied", "permission_error", None),
        (sdk, openai.NotFoundError, "not_found", "not_found_error", "project_id"),
    ]
    for watched, kind, code, error_type, param in cases:
        with pytest.raises(kind) as raised:
            await watched.client.admin.organization.projects.archive(_NOBODY)
        error = raised.value
        assert (error.code, error.type, error.param) == (code, error_type, param)
        assert error.request_id == error.response.headers["x-request-id"]
        assert len(watched.sent) == 1, "none of these is repeated"
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.client.admin.organization.usage.costs(start_time=-1)
    assert refused.value.param == "start_time"


async def test_conflict_is_not_repeated(gateway: Gateway, tenant: Tenant, connect: Connect) -> None:
    policy = await gateway.make_policy(tenant)
    sdk = connect(tenant.admin_key)
    raw = openai.AsyncOpenAI(
        admin_api_key=tenant.admin_key,
        api_key=tenant.admin_key,
        base_url=f"{gateway.base_url}/v1",
        http_client=sdk.client._client,
    )
    with pytest.raises(openai.ConflictError) as stale:
        await raw.patch(
            f"/organization/policies/{policy['id']}", cast_to=object, body={"revision": 9}
        )
    assert stale.value.code == "revision_conflict"
    assert len(sdk.sent) == 1
    key = idempotency_key()
    creations = [{"name": "a", "rule": "r?"}, {"name": "b", "rule": "r?"}]
    await raw.post(
        "/organization/policies", cast_to=object, body=creations[0], options={"headers": key}
    )
    with pytest.raises(openai.ConflictError) as reused:
        await raw.post(
            "/organization/policies", cast_to=object, body=creations[1], options={"headers": key}
        )
    assert reused.value.code == "idempotency_conflict"
    assert len(sdk.sent) == 3


def _synchronous_names(base_url: str, admin_key: str) -> list[str | None]:
    with openai.OpenAI(
        api_key="unused", admin_api_key=admin_key, base_url=f"{base_url}/v1"
    ) as client:
        return [key.name for key in client.admin.organization.admin_api_keys.list(limit=1)]


async def test_synchronous_client(gateway: Gateway, tenant: Tenant) -> None:
    await gateway.admin_key(tenant, "policies:read")
    names = await asyncio.to_thread(_synchronous_names, gateway.base_url, tenant.admin_key)
    assert [str(name).split()[0] for name in names] == ["root", "limited"]
