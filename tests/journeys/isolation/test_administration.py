"""Tests the limits of an organization's administration: the request rate, and the stored objects."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.support.gateway import assert_error, idempotency_key
from tests.support.scripted_gateway import ScriptedGateway, answering_gateway
from tests.support.tables import each

# A token is added every four seconds, and each test exceeds the rate sooner than that.
_PER_MINUTE = 15
_POLICIES = 3
_KEYS = 4
_LIMITS = {
    "tenants.administration_rate.PER_MINUTE": _PER_MINUTE,
    "policies.policies.POLICIES_MAX": _POLICIES,
    "tenants.project_keys.KEYS_MAX": _KEYS,
}
# The number of tenants in which requests race to create the last allowed object. The requests of a
# single race may be processed in order by chance.
_RACES = 5
_DRAFT = {"name": "Bombs", "rule": "Is it about bombs?"}


@pytest.fixture(scope="module")
async def bounded(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir,
        conninfo,
        changed_constants=_LIMITS,
        # An organization may use a quarter of the pool.
        database={"data_dir": data_dir, "pool_size": 24},
    ) as running:
        yield running


async def _list_keys(scripted: ScriptedGateway) -> httpx2.Response:
    return await scripted.gateway.client.get(
        "/v1/organization/admin_api_keys", headers=scripted.tenant.as_admin
    )


async def _create(scripted: ScriptedGateway, path: str, body: dict[str, str]) -> httpx2.Response:
    headers = {**scripted.tenant.as_admin, **idempotency_key()}
    return await scripted.gateway.client.post(
        f"/v1/organization/{path}", json=body, headers=headers
    )


async def test_requests_beyond_the_rate_are_refused_for_this_organization_only(
    bounded: ScriptedGateway,
) -> None:
    hostile, quiet = await bounded.with_tenant(), await bounded.with_tenant()
    for _ in range(_PER_MINUTE):
        assert (await _list_keys(hostile)).status_code == 200
    refused = await _list_keys(hostile)
    assert_error(refused, 429, "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 4
    assert (await _list_keys(quiet)).status_code == 200
    # Calls have a separate rate.
    assert (await hostile.chat()).status_code == 200


@each(
    ("method", "path", "status"),
    [
        ("GET", "/v1/organization/admin_api_keys", 403),
        ("GET", f"/v1/organization/policies/{'x' * 201}", 400),
        ("POST", "/v1/organization/policies", 415),
        ("GET", "/v1/models/scripted", 403),
        ("POST", "/v1/chat/completions", 403),
    ],
)
async def test_requests_that_are_rejected_before_count_too(
    bounded: ScriptedGateway, method: str, path: str, status: int
) -> None:
    hostile = await bounded.with_tenant()
    headers = await bounded.gateway.admin_key(hostile.tenant, "policies:read", "policies:write")
    for expected in [status] * _PER_MINUTE + [429]:
        answer = await bounded.gateway.client.request(method, path, headers=headers)
        assert answer.status_code == expected
    assert (await _list_keys(hostile)).status_code == 429


async def test_a_refused_body_is_not_read(bounded: ScriptedGateway) -> None:
    hostile = await bounded.with_tenant()
    for _ in range(_PER_MINUTE):
        await _list_keys(hostile)
    headers = {**hostile.tenant.as_admin, **idempotency_key(), "content-type": "application/json"}
    refused = await bounded.gateway.client.post(
        "/v1/organization/policies", content=b"no JSON", headers=headers
    )
    assert_error(refused, 429, "rate_limit_exceeded")


async def test_an_organization_has_so_many_policies(bounded: ScriptedGateway) -> None:
    for _ in range(_RACES):
        hostile, quiet = await bounded.with_tenant(), await bounded.with_tenant()
        answers = await asyncio.gather(
            *(_create(hostile, "policies", _DRAFT) for _ in range(3 * _POLICIES))
        )
        refused = [answer for answer in answers if answer.status_code != 200]
        assert len(answers) - len(refused) == _POLICIES
        for answer in refused:
            assert_error(answer, 409, "state_conflict")
        assert (await _create(quiet, "policies", _DRAFT)).status_code == 200


async def test_a_project_has_so_many_keys(bounded: ScriptedGateway) -> None:
    async def create(scripted: ScriptedGateway) -> httpx2.Response:
        path = f"projects/{scripted.tenant.project_id}/api_keys"
        return await _create(scripted, path, {"name": "Another"})

    for _ in range(_RACES):
        hostile, quiet = await bounded.with_tenant(), await bounded.with_tenant()
        answers = await asyncio.gather(*(create(hostile) for _ in range(3 * _KEYS)))
        refused = [answer for answer in answers if answer.status_code != 200]
        # The tenant was created with one key.
        assert len(answers) - len(refused) == _KEYS - 1
        for answer in refused:
            assert_error(answer, 409, "state_conflict")
        # A revoked key no longer counts.
        made = next(answer.json() for answer in answers if answer.status_code == 200)
        await bounded.gateway.services.project_keys.project_key_revoke(made["id"])
        assert (await create(hostile)).status_code == 200
        assert (await create(quiet)).status_code == 200
