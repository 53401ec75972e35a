"""Tests the endpoint for a key's own spend and the header with a call's cost. Both exist only if the operator
enables them."""

from typing import Any

import pytest

from tests.support.gateway import Gateway, Tenant, assert_error
from tests.support.scripted_gateway import COST, ScriptedGateway
from tollkeeper.core.access import Permission
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.money.caps.rule import CapPeriod

_HEADER = "x-cost-usd"


@pytest.fixture(scope="module")
def scripted_options() -> dict[str, Any]:
    return {"extensions": {"key_usage": True, "cost_header": _HEADER}}


async def test_off_by_default(gateway: Gateway, tenant: Tenant) -> None:
    answer = await gateway.client.get("/v1/key/usage", headers=tenant.as_customer)
    assert_error(answer, 404, "not_found")


async def test_the_cost_of_a_call_is_in_its_header(scripted: ScriptedGateway) -> None:
    answer = await scripted.chat()
    assert answer.headers[_HEADER] == usd_from_picousd(COST)
    entry = await scripted.entry_of(answer)
    assert answer.headers[_HEADER] == usd_from_picousd(entry.cost)
    streamed = await scripted.chat(stream=True)
    assert _HEADER not in streamed.headers
    refused = await scripted.chat(model="absent")
    assert _HEADER not in refused.headers


async def test_a_key_sees_its_own_spend_and_no_other(scripted: ScriptedGateway) -> None:
    client, tenant = scripted.gateway.client, scripted.tenant
    before = (await client.get("/v1/key/usage", headers=tenant.as_customer)).json()
    assert (before["today"], before["this_month"]) == ("0", "0")
    for _ in range(2):
        assert (await scripted.chat()).status_code == 200
    keys = scripted.gateway.services.project_keys
    other, value = await keys.project_key_create_by_operator(
        tenant.project_id, "other", (Permission.INFERENCE_WRITE,), None
    )
    spent = (await client.get("/v1/key/usage", headers=tenant.as_customer)).json()
    assert spent == {
        "object": "key_usage",
        "api_key_id": spent["api_key_id"],
        "project_id": str(tenant.project_id),
        "today": usd_from_picousd(2 * COST),
        "this_month": usd_from_picousd(2 * COST),
        "currency": "usd",
    }
    headers = {"Authorization": f"Bearer {value}"}
    theirs = (await client.get("/v1/key/usage", headers=headers)).json()
    assert (theirs["api_key_id"], theirs["this_month"]) == (str(other.id), "0")


async def test_a_key_sees_its_caps_and_what_is_left(scripted: ScriptedGateway) -> None:
    client, tenant = scripted.gateway.client, scripted.tenant
    services = scripted.gateway.services
    [key] = await services.project_keys.project_key_list(tenant.project_id)
    organization = tenant.organization_id
    await services.caps.cap_set(organization, 10**12, CapPeriod.WEEK, key_id=key.id)
    await services.caps.cap_set(organization, 10**13, CapPeriod.DAY)
    assert (await scripted.chat()).status_code == 200
    [cap] = (await client.get("/v1/key/usage", headers=tenant.as_customer)).json()["caps"]
    assert cap == {
        "period": "week",
        "amount": "1",
        "held": "0",
        "spent": usd_from_picousd(COST),
        "remaining": usd_from_picousd(10**12 - COST),
        "resets_at": cap["resets_at"],
    }
    assert cap["resets_at"] % (7 * 86_400) == 4 * 86_400  # Monday at midnight UTC


async def test_permission(scripted: ScriptedGateway) -> None:
    keys = scripted.gateway.services.project_keys
    _, value = await keys.project_key_create_by_operator(
        scripted.tenant.project_id, "reader", (Permission.MODELS_READ,), None
    )
    client = scripted.gateway.client
    refused = await client.get("/v1/key/usage", headers={"Authorization": f"Bearer {value}"})
    assert_error(refused, 403, "permission_denied")
    refused = await client.get("/v1/key/usage", headers=scripted.tenant.as_admin)
    assert_error(refused, 403, "permission_denied")
