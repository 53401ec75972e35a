"""Tests that published attacks fail. Each test has the name of the advisory that it replays."""

import asyncio
from typing import Any
from uuid import uuid4

import psutil
import pytest
import structlog

from tests.journeys.attacks.conftest import Bait
from tests.support.gateway import assert_error, idempotency_key
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway, chat_body
from tests.support.upstream import answer, completion
from tollkeeper.faces.routes import ROUTES

_ADDRESS_FIELDS = ("api_base", "base_url", "user_config", "custom_host", "proxy", "webhook")
_ADDRESS_HEADERS = (
    *("X-Portkey-Custom-Host", "X-Portkey-Config", "X-Api-Base", "X-Forwarded-Host"),
    *("X-Upstream-Url", "X-Bf-Plugin", "X-Litellm-Api-Base"),
)
_INJECTIONS = (
    "' OR '1'='1",
    "'; SELECT pg_sleep(30); --",
    '"; DROP TABLE organizations; --',
    "\\'; SELECT 1; --",
    "%27%20OR%201%3D1--",
    "{{7*7}}${7*7}%(x)s",
)


@pytest.mark.parametrize("field", _ADDRESS_FIELDS)
async def test_litellm_cve_2024_6587_an_address_in_the_body(
    scripted: ScriptedGateway, bait: Bait, field: str
) -> None:
    """If a client could name another server, the gateway would send the operator's key to it."""
    found = await scripted.chat(**{field: bait.url})
    assert_error(found, 400, "invalid_request", param=field)
    assert bait.visits == []


@pytest.mark.parametrize("header", _ADDRESS_HEADERS)
async def test_portkey_cve_2025_66405_and_bifrost_cve_2026_86242_an_address_in_a_header(
    scripted: ScriptedGateway, bait: Bait, header: str
) -> None:
    headers = {**scripted.tenant.as_customer, header: bait.url}
    before = len(scripted.upstream.requests)
    assert (await scripted.chat(headers=headers)).status_code == 200
    assert bait.visits == []
    (received,) = scripted.upstream.requests[before:]
    assert header.lower() not in received.headers
    assert bait.url.encode() not in received.head + received.body


@pytest.mark.parametrize(
    "name", ["#", "@evil.example/x", "?x=1", "../../admin", "a\x00b", "%2e%2e"]
)
async def test_portkey_1596_a_model_that_changes_the_address(
    scripted: ScriptedGateway, name: str
) -> None:
    before = len(scripted.upstream.requests)
    for model in (name, f"{MODEL}{name}", f"{MODEL}/{name}"):
        assert_error(await scripted.chat(model=model), 404, "model_not_found", param="model")
    assert len(scripted.upstream.requests) == before


@pytest.mark.parametrize("text", _INJECTIONS)
async def test_litellm_cve_2024_5225_2025_45809_2026_42208_sql_in_every_place(
    scripted: ScriptedGateway, text: str
) -> None:
    """The last of these vulnerabilities was in the code that runs after a failed authentication."""
    client, admin = scripted.gateway.client, scripted.tenant.as_admin
    for headers in (
        {"Authorization": f"Bearer {text}"},
        {"Authorization": f"Bearer {scripted.tenant.project_key}{text}"},
        {"x-api-key": text},
    ):
        assert (await scripted.chat(headers=headers)).status_code == 401
    costs = "/v1/organization/costs"
    for path, parameters in (
        (costs, {"start_time": "1800000000", "page": text}),
        (costs, {"start_time": text}),
        (costs, {"start_time": "1800000000", "group_by": text}),
        (costs, {"start_time": "1800000000", "project_ids": text}),
        ("/v1/organization/admin_api_keys", {"after": text}),
    ):
        found = await client.get(path, params=parameters, headers=admin)
        assert found.status_code in (400, 404), (path, parameters, found.text)
    for path in ("policies", "projects/x/effective_policies?x=", "admin_api_keys"):
        found = await client.get(f"/v1/organization/{path}/{text}", headers=admin)
        assert 400 <= found.status_code < 500, (path, found.text)
    # The session and the user are only texts, so the gateway accepts them.
    headers = {**scripted.tenant.as_customer, "X-Service-Session-ID": text}
    assert (await scripted.chat(headers=headers, user=text)).status_code == 200
    assert (await scripted.balance())["settled"] == COST


async def test_litellm_cve_2026_35030_keys_with_the_same_beginning(
    scripted: ScriptedGateway,
) -> None:
    key = scripted.tenant.project_key
    assert (await scripted.chat()).status_code == 200
    for length in (8, 20, 40, len(key) - 1):
        other = key[:length] + "".join("a" if at != "a" else "b" for at in key[length:])
        assert len(other) == len(key)
        found = await scripted.chat(headers={"Authorization": f"Bearer {other}"})
        assert_error(found, 401, "invalid_api_key")


async def test_litellm_cve_2024_9606_keys_in_logs(scripted: ScriptedGateway) -> None:
    key = scripted.tenant.project_key
    with structlog.testing.capture_logs() as events:
        scripted.upstream.play(answer(b"{", content_type="application/json"))
        await scripted.chat()
        await scripted.chat(headers={"Authorization": f"Bearer {key}x"})
        await scripted.chat(headers={"x-api-key": key, "Authorization": f"Bearer {key}"}, n=0)
        await scripted.gateway.client.get(f"/v1/models/{key}", headers=scripted.tenant.as_customer)
    written = repr(events)
    assert key not in written
    assert key[12:] not in written
    assert scripted.upstream.url not in written


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "permissions": ["*"]},
        {"name": "x", "organization_id": str(uuid4())},
        {"name": "x", "owner": {"id": str(uuid4())}},
        {"name": "x", "value": "sk-mine"},
        {"name": "x", "kind": "admin"},
    ],
)
async def test_litellm_cve_2026_47101_47102_more_rights_than_given(
    scripted: ScriptedGateway, body: dict[str, Any]
) -> None:
    path = f"/v1/organization/projects/{scripted.tenant.project_id}/api_keys"
    headers = {**scripted.tenant.as_admin, **idempotency_key()}
    found = await scripted.gateway.client.post(path, json=body, headers=headers)
    assert_error(found, 400, "invalid_request", param=next(name for name in body if name != "name"))


async def test_litellm_cve_2025_0628_a_key_of_the_wrong_kind(scripted: ScriptedGateway) -> None:
    for endpoint in ROUTES:
        wrong = (
            scripted.tenant.as_customer
            if endpoint.path.startswith("/v1/organization")
            else scripted.tenant.as_admin
        )
        found = await scripted.gateway.client.request(
            endpoint.method, _path(endpoint.path), headers=wrong
        )
        assert found.status_code in (401, 403), (endpoint.path, found.text)


async def test_portkey_1718_a_route_without_authentication(scripted: ScriptedGateway) -> None:
    for endpoint in ROUTES:
        found = await scripted.gateway.client.request(endpoint.method, _path(endpoint.path))
        assert_error(found, 401, "invalid_api_key")


async def test_litellm_cve_2025_11203_a_health_page_with_secrets(
    scripted: ScriptedGateway,
) -> None:
    for path in ("/health", "/healthz", "/readyz", "/metrics", "/debug", "/config", "/v1/health"):
        for headers in ({}, scripted.tenant.as_customer, scripted.tenant.as_admin):
            found = await scripted.gateway.client.get(path, headers=headers)
            assert_error(found, 404, "not_found")


@pytest.mark.parametrize("host", ["x/v1/health?", "x#", "127.0.0.1:80/..", "x/v1/models/"])
async def test_litellm_cve_2026_49468_and_starlette_cve_2026_48710_a_host_that_is_a_path(
    scripted: ScriptedGateway, host: str
) -> None:
    """The host has no influence on the choice of a route, so a request without a key is always refused."""
    address = scripted.gateway.base_url.removeprefix("http://")
    name, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    request = f"GET /v1/organization/admin_api_keys HTTP/1.1\r\nHost: {host}\r\n\r\n"
    writer.write(request.encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    assert status in (400, 401)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "mcp", "server_url": "{bait}", "command": "touch", "args": ["/tmp/owned"]},
        {"type": "local_shell"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ],
    ids=lambda tool: tool["type"],
)
async def test_litellm_cve_2026_42271_and_bifrost_cve_2026_90898_a_command_in_a_request(
    scripted: ScriptedGateway, bait: Bait, tool: dict[str, Any]
) -> None:
    """The gateway runs no tools: it starts no process, and does not connect to the named server."""
    children = psutil.Process().children(recursive=True)
    tool = {name: bait.url if value == "{bait}" else value for name, value in tool.items()}
    body = {"model": MODEL, "input": "Hello", "tools": [tool]}
    refused = await scripted.gateway.client.post(
        "/v1/responses", json=body, headers=scripted.tenant.as_customer
    )
    assert_error(refused, 501, "not_implemented", param="tools[0]")
    await scripted.chat(tools=[tool])
    assert bait.visits == []
    assert not set(psutil.Process().children(recursive=True)) - set(children)


async def test_aiohttp_cve_2025_69223_an_answer_that_unpacks_without_end(
    scripted: ScriptedGateway,
) -> None:
    packed = answer(completion(), headers=[("content-encoding", "gzip")])
    scripted.upstream.play(packed)
    assert_error(await scripted.chat(), 502, "provider_unavailable")
    body = chat_body()
    headers = {**scripted.tenant.as_customer, "Content-Encoding": "gzip"}
    found = await scripted.gateway.client.post("/v1/chat/completions", json=body, headers=headers)
    assert found.status_code in (400, 415)


async def test_another_organizations_objects_do_not_exist(scripted: ScriptedGateway) -> None:
    """Most findings in multi-tenant gateways are of this kind: a client uses another organization's id."""
    stranger = await scripted.with_tenant()
    policy = await scripted.gateway.make_policy(scripted.tenant)
    client, headers = scripted.gateway.client, stranger.tenant.as_admin
    own = f"/v1/organization/policies/{policy['id']}"
    absent = f"/v1/organization/policies/pol_{uuid4().hex}"
    answers = [await client.get(path, headers=headers) for path in (own, absent)]
    for found in answers:
        assert_error(found, 404, "not_found", param="policy_id")
    bodies = [found.json()["error"] | {"request_id": ""} for found in answers]
    assert bodies[0] == bodies[1]
    body = {"policy_ids": [policy["id"]]}
    assert_error(await stranger.chat(**body), 404, "not_found", param="policy_ids[0]")


def _path(template: str) -> str:
    return template.replace("{model}", "example%2Fchat").replace("{", "").replace("}", "")
