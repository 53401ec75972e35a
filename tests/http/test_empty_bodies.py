"""Tests that operations without a body accept an empty body in every form, and reject other bodies."""

from collections.abc import Callable

import pytest

from tests.support.gateway import Gateway, Tenant, assert_error
from tests.support.tables import each
from tollkeeper.core.access import KeyId

_JSON = ("Content-Type", "application/json")


async def _new_admin_key(gateway: Gateway, tenant: Tenant) -> KeyId:
    key, _ = await gateway.services.admin_keys.admin_key_create(
        tenant.organization_id, "doomed", (), None
    )
    return key.id


def _archive(tenant: Tenant, _key_id: KeyId) -> tuple[str, str]:
    return "POST", f"/v1/organization/projects/{tenant.project_id}/archive"


def _revoke(_tenant: Tenant, key_id: KeyId) -> tuple[str, str]:
    return "DELETE", f"/v1/organization/admin_api_keys/{key_id}"


Operation = Callable[[Tenant, KeyId], tuple[str, str]]
both_operations = pytest.mark.parametrize("operation", [_archive, _revoke])


@both_operations
@pytest.mark.parametrize(
    "extra",
    [
        [],
        [_JSON],
        [("Content-Length", "0")],
        [_JSON, ("Content-Length", "0")],
        [("Transfer-Encoding", "chunked")],
        [("Content-Type", "text/plain")],
    ],
    ids=["bare", "type", "length", "type and length", "chunked", "other type"],
)
async def test_empty_body(
    gateway: Gateway, tenant: Tenant, operation: Operation, extra: list[tuple[str, str]]
) -> None:
    method, path = operation(tenant, await _new_admin_key(gateway, tenant))
    answer = await gateway.client.request(
        method, path, headers=[*tenant.as_admin.items(), *extra], content=b""
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["deleted"] is True


@both_operations
@pytest.mark.parametrize("body", [b"{}", b"null", b" ", b"x", b"\x00"])
async def test_body_that_is_not_empty(
    gateway: Gateway, tenant: Tenant, operation: Operation, body: bytes
) -> None:
    method, path = operation(tenant, await _new_admin_key(gateway, tenant))
    answer = await gateway.client.request(
        method, path, headers=dict([*tenant.as_admin.items(), _JSON]), content=body
    )
    assert_error(answer, 400, "invalid_request")
    # The rejected request changed nothing, so the operation still succeeds.
    assert (await gateway.client.request(method, path, headers=tenant.as_admin)).status_code == 200


_READS = [
    *("/v1/organization/admin_api_keys", "/v1/organization/costs?start_time=0"),
    *("/v1/organization/policies/pol_x", "/v1/models/example%2Fchat-small"),
]


@each("path", _READS)
async def test_reading_takes_no_body(gateway: Gateway, tenant: Tenant, path: str) -> None:
    headers = tenant.as_customer if "models" in path else tenant.as_admin
    answer = await gateway.client.request("GET", path, headers=headers, content=b"{}")
    assert_error(answer, 400, "invalid_request")
    head = await gateway.client.request("HEAD", path, headers=headers, content=b"{}")
    assert head.status_code == 400
    found = await gateway.client.request("GET", path, headers={**headers, **dict([_JSON])})
    assert found.status_code == (404 if "pol_x" in path else 200)
