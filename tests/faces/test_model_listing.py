"""Tests `GET /v1/models`, which is not in the interface and is served only if the operator enables it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateway import Gateway, Tenant, assert_error
from tests.support.responses_answers import BARE
from tests.support.scripted_gateway import MODEL, ScriptedGateway, answering_gateway
from tollkeeper.core.access import Permission


@pytest.fixture(scope="module")
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Starts a gateway that serves the list of its two models."""
    async with answering_gateway(
        data_dir,
        conninfo,
        extensions={"model_listing": True},
        more_models=[{"id": BARE}],
    ) as running:
        yield running


async def test_off_by_default(gateway: Gateway, tenant: Tenant) -> None:
    answer = await gateway.client.get("/v1/models", headers=tenant.as_customer)
    assert_error(answer, 404, "not_found")


async def test_list_has_the_models_as_they_are_read(scripted: ScriptedGateway) -> None:
    client, headers = scripted.gateway.client, scripted.tenant.as_customer
    listed = (await client.get("/v1/models", headers=headers)).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == [MODEL, BARE]
    read = await client.get(f"/v1/models/{MODEL.replace('/', '%2F')}", headers=headers)
    assert listed["data"][0] == read.json()


async def test_permission(scripted: ScriptedGateway) -> None:
    services = scripted.gateway.services
    _, key = await services.project_keys.project_key_create_by_operator(
        scripted.tenant.project_id, "no models", (Permission.INFERENCE_WRITE,), None
    )
    answer = await scripted.gateway.client.get(
        "/v1/models", headers={"Authorization": f"Bearer {key}"}
    )
    assert_error(answer, 403, "permission_denied")
    refused = await scripted.gateway.client.get("/v1/models", headers=scripted.tenant.as_admin)
    assert_error(refused, 403, "permission_denied")


async def test_locked_models_are_not_listed(gateway: Gateway, tenant: Tenant) -> None:
    """Calls the service: only `gateway` has a model that requires checks, but it does not serve the list."""
    caller = await gateway.services.authentication.authenticate(tenant.project_key)
    listed = await gateway.services.models.model_list(caller)  # type: ignore[arg-type]
    assert [model.id for model, _ in listed] == ["example/chat-small"]
