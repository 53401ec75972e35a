"""Tests reading one model: its fields, its id in the path, and whether an organization may use it."""

from typing import Any

from tests.support.gateway import Gateway, Tenant, assert_error, running_gateway
from tests.support.tables import each
from tollkeeper.setup.settings import Settings


async def _read(gateway: Gateway, tenant: Tenant, segment: str) -> dict[str, Any]:
    answer = await gateway.client.get(f"/v1/models/{segment}", headers=tenant.as_customer)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_every_field(gateway: Gateway, tenant: Tenant) -> None:
    assert await _read(gateway, tenant, "example%2Fchat-small") == {
        "object": "model",
        "id": "example/chat-small",
        "owned_by": "example",
        "name": "Chat Small",
        "display_name": "Chat Small",
        "access": {
            "required_checks": [],
            "available": True,
            "locked": False,
            "missing_requirements": [],
        },
        "created": 1767225600,
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "pricing": {
            "prompt": "0.0000002",
            "completion": "0.0000008",
            "image": "0",
            "request": "0",
            # The settings have no price for cached tokens, so they cost as much as other tokens.
            "input_cache_read": "0.0000002",
        },
        "supported_sampling_parameters": ["temperature", "top_p", "seed", "stop"],
        "sampling_limits": {},
        "sampling_limits_revision": "1",
        "supported_features": ["tools", "json_mode", "structured_outputs", "logprobs"],
        "is_ready": True,
        "quantization": "bf16",
        "context_length": 32768,
        "max_output_length": 8192,
        "root": "example/chat-small",
        "parent": None,
    }


async def test_plain_slash_as_older_sdks_send_it(gateway: Gateway, tenant: Tenant) -> None:
    assert (await _read(gateway, tenant, "example/chat-small"))["id"] == "example/chat-small"
    assert (await _read(gateway, tenant, "example/chat%2Dsmall"))["id"] == "example/chat-small"


async def test_slash_in_lower_case(gateway: Gateway, tenant: Tenant) -> None:
    assert (await _read(gateway, tenant, "example%2fchat-small"))["id"] == "example/chat-small"


async def test_any_character_may_be_escaped(gateway: Gateway, tenant: Tenant) -> None:
    escaped = "".join(f"%{byte:02X}" for byte in b"example/chat-small")
    assert (await _read(gateway, tenant, escaped))["id"] == "example/chat-small"


def _access(missing: list[str]) -> dict[str, Any]:
    return {
        "required_checks": ["kyc", "terms"],
        "available": not missing,
        "locked": bool(missing),
        "missing_requirements": missing,
    }


async def test_access_follows_the_organizations_checks(gateway: Gateway, tenant: Tenant) -> None:
    organizations = gateway.services.organizations

    async def access() -> object:
        return (await _read(gateway, tenant, "example%2Flocked"))["access"]

    assert await access() == _access(["kyc", "terms"])
    await organizations.organization_grant_check(tenant.organization_id, "terms")
    assert await access() == _access(["kyc"])
    await organizations.organization_grant_check(tenant.organization_id, "kyc")
    assert await access() == _access([])
    await organizations.organization_revoke_check(tenant.organization_id, "terms")
    assert await access() == _access(["terms"])


async def test_checks_are_the_organizations_own(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.make_tenant("Other")
    for check in ("kyc", "terms"):
        await gateway.services.organizations.organization_grant_check(other.organization_id, check)
    found = await _read(gateway, tenant, "example%2Flocked")
    assert found["access"] == _access(["kyc", "terms"])


# Path segments that name no model, and the code and param of the 404 response.
_ABSENT = [
    ("nothing", "model_not_found", "model"),
    ("Example%2Fchat-small", "model_not_found", "model"),
    ("example%2Fchat-small%20", "model_not_found", "model"),
    ("example%252Fchat-small", "model_not_found", "model"),
    ("example%2Fchat-small%00", "model_not_found", "model"),
    ("%00", "model_not_found", "model"),
    ("..%2F..%2Forganization%2Fcosts", "model_not_found", "model"),
    ("%2E%2E", "model_not_found", "model"),
    ("http:%2F%2F169.254.169.254%2F", "model_not_found", "model"),
    ("a" * 200, "model_not_found", "model"),
    ("%2F" * 200, "model_not_found", "model"),
    ("%F0%9F%98%80" * 200, "model_not_found", "model"),
    ("%E2%80%AE%0D%0AX-Injected:%201", "model_not_found", "model"),
    ("example%2Fchat-small/", "model_not_found", "model"),
    ("example//chat-small", "model_not_found", "model"),
    ("example/chat-small/more", "model_not_found", "model"),
    ("", "not_found", None),
]


@each(("segment", "code", "param"), _ABSENT)
async def test_absent(
    gateway: Gateway, tenant: Tenant, segment: str, code: str, param: str | None
) -> None:
    answer = await gateway.client.get(f"/v1/models/{segment}", headers=tenant.as_customer)
    assert_error(answer, 404, code, param)
    assert "x-injected" not in answer.headers


@each("segment", ["a" * 201, "%F0%9F%98%80" * 201, "%2F" * 201, "%FF", "%C0%AF", "%ED%A0%80"])
async def test_segment_that_is_no_id(gateway: Gateway, tenant: Tenant, segment: str) -> None:
    answer = await gateway.client.get(f"/v1/models/{segment}", headers=tenant.as_customer)
    assert_error(answer, 400, "invalid_request", "model")


async def test_listing_is_not_served(gateway: Gateway, tenant: Tenant) -> None:
    answer = await gateway.client.get("/v1/models", headers=tenant.as_customer)
    assert_error(answer, 404, "not_found")


async def test_listing_where_it_is_switched_on(
    settings: Settings, conninfo: str, gateway: Gateway, tenant: Tenant
) -> None:
    extensions = settings.extensions.model_copy(update={"model_listing": True})
    listing = settings.model_copy(update={"extensions": extensions})
    async with running_gateway(listing, conninfo) as extended:
        client = extended.client
        answer = await client.get("/v1/models", headers=tenant.as_customer)
        assert answer.status_code == 200
        found = answer.json()
        read = await _read(extended, tenant, "example%2Fchat-small")
        assert (found["object"], found["data"][0]) == ("list", read)
        assert_error(await client.get("/v1/models"), 401, "invalid_api_key")
        refused = await client.get("/v1/models", headers=tenant.as_admin)
        assert_error(refused, 403, "permission_denied")
        _, powerless = await gateway.services.project_keys.project_key_create_by_operator(
            tenant.project_id, "p", ("inference:write",), None
        )
        refused = await client.get("/v1/models", headers={"x-api-key": powerless})
        assert_error(refused, 403, "permission_denied")


async def test_reload_puts_another_catalogue_in_force(gateway: Gateway, tenant: Tenant) -> None:
    current = gateway.services.catalog
    before = current.catalog
    try:
        current.catalog = type(before)(before.models[:1])
        answer = await gateway.client.get("/v1/models/example%2Flocked", headers=tenant.as_customer)
        assert_error(answer, 404, "model_not_found", "model")
    finally:
        current.catalog = before
