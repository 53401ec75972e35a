"""Tests project keys, project archiving and admin keys over HTTP."""

import asyncio
from typing import Any
from uuid import UUID

import httpx2
import pytest

from tests.support.gateway import Gateway, Tenant, assert_error, idempotency_key
from tests.support.tables import each
from tollkeeper.core.access import KeyId

_ADMIN_KEYS = "/v1/organization/admin_api_keys"
_NOBODY = "7f3d2f7e-5a0c-4a5e-9d5f-0d3c1b2a4e5f"


async def _create_key(
    gateway: Gateway, tenant: Tenant, body: Any, project_id: object = None
) -> httpx2.Response:
    return await gateway.client.post(
        f"/v1/organization/projects/{project_id or tenant.project_id}/api_keys",
        json=body,
        headers={**tenant.as_admin, **idempotency_key()},
    )


async def _archive(gateway: Gateway, tenant: Tenant, project_id: object) -> httpx2.Response:
    return await gateway.client.post(
        f"/v1/organization/projects/{project_id}/archive", headers=tenant.as_admin
    )


async def _list(gateway: Gateway, tenant: Tenant, query: str = "") -> dict[str, Any]:
    answer = await gateway.client.get(f"{_ADMIN_KEYS}{query}", headers=tenant.as_admin)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def _use(gateway: Gateway, value: str) -> int:
    answer = await gateway.client.get(
        "/v1/models/example%2Fchat-small", headers={"Authorization": f"Bearer {value}"}
    )
    return answer.status_code


async def test_created_project_key(gateway: Gateway, tenant: Tenant) -> None:
    answer = await _create_key(gateway, tenant, {"name": "deploy"})
    assert answer.status_code == 200
    key = answer.json()
    assert key == {
        "object": "organization.project.api_key",
        "id": str(UUID(key["id"])),
        "name": "deploy",
        "redacted_value": key["value"][:8] + "...",
        "value": key["value"],
        "created_at": key["created_at"],
        "last_used_at": None,
        "expires_at": None,
        "owner": {"id": str(tenant.project_id), "type": "project", "name": "Acme project"},
        "status": "active",
        "permissions": ["inference:write", "models:read"],
    }
    assert key["value"].startswith("tkp_")
    assert await _use(gateway, key["value"]) == 200


async def test_name_bounds(gateway: Gateway, tenant: Tenant) -> None:
    for name in ("x", "x" * 256, "\U0001f600" * 256, " ", "'; --"):
        answer = await _create_key(gateway, tenant, {"name": name})
        assert answer.json()["name"] == name
    wrong: list[object] = ["", "x" * 257, "\U0001f600" * 257, "a\x00b", None, 1, 1.5, True, [], {}]
    for other in wrong:
        answer = await _create_key(gateway, tenant, {"name": other})
        assert_error(answer, 400, "invalid_request", "name")


@each("field", ["permissions", "status", "owner", "id", "value", "expires_at", "project_id"])
async def test_nothing_but_the_name_is_assigned(
    gateway: Gateway, tenant: Tenant, field: str
) -> None:
    answer = await _create_key(gateway, tenant, {"name": "k", field: "active"})
    assert_error(answer, 400, "invalid_request", field)


async def test_name_is_required(gateway: Gateway, tenant: Tenant) -> None:
    assert_error(await _create_key(gateway, tenant, {}), 400, "invalid_request", "name")


@each(
    "project_id",
    [_NOBODY, "x", "%00", "a" * 200, f"%7B{_NOBODY}%7D", _NOBODY.replace("-", ""), "1"],
)
async def test_absent_project(gateway: Gateway, tenant: Tenant, project_id: str) -> None:
    answer = await _create_key(gateway, tenant, {"name": "k"}, project_id)
    assert_error(answer, 404, "not_found", "project_id")
    assert_error(await _archive(gateway, tenant, project_id), 404, "not_found", "project_id")


async def test_only_the_canonical_spelling_names_a_project(
    gateway: Gateway, tenant: Tenant
) -> None:
    digits = tenant.project_id.hex
    for spelling in (f"{digits}----", f"----{digits}", f"-{digits}---"):
        assert UUID(spelling) == tenant.project_id
        answer = await _create_key(gateway, tenant, {"name": "k"}, spelling)
        assert_error(answer, 404, "not_found", "project_id")


async def test_path_id_that_is_too_long(gateway: Gateway, tenant: Tenant) -> None:
    answer = await _create_key(gateway, tenant, {"name": "k"}, "a" * 201)
    assert_error(answer, 400, "invalid_request", "project_id")


async def test_archive(gateway: Gateway, tenant: Tenant) -> None:
    created = (await _create_key(gateway, tenant, {"name": "k"})).json()["value"]
    answer = await _archive(gateway, tenant, tenant.project_id)
    assert answer.status_code == 200
    assert answer.json() == {
        "object": "organization.project.deleted",
        "id": str(tenant.project_id),
        "deleted": True,
    }
    for key in (created, tenant.project_key):
        assert await _use(gateway, key) == 401
    refused = await _create_key(gateway, tenant, {"name": "late"})
    assert_error(refused, 409, "state_conflict", "project_id")
    assert refused.headers["x-should-retry"] == "false"
    # Archiving is idempotent.
    assert (await _archive(gateway, tenant, tenant.project_id)).json() == answer.json()


async def test_no_key_appears_in_a_project_that_is_being_archived(
    gateway: Gateway, tenant: Tenant
) -> None:
    answers = await asyncio.gather(
        *(_create_key(gateway, tenant, {"name": f"k{number}"}) for number in range(10)),
        _archive(gateway, tenant, tenant.project_id),
        *(_create_key(gateway, tenant, {"name": f"l{number}"}) for number in range(10)),
    )
    assert answers[10].status_code == 200
    for answer in answers[:10] + answers[11:]:
        assert answer.status_code in (200, 409)
        if answer.status_code == 200:
            assert await _use(gateway, answer.json()["value"]) == 401


async def test_listed_admin_key(gateway: Gateway, tenant: Tenant) -> None:
    page = await _list(gateway, tenant)
    key = page["data"][0]
    assert page == {
        "object": "list",
        "data": [key],
        "has_more": False,
        "first_id": key["id"],
        "last_id": key["id"],
    }
    assert key == {
        "object": "organization.admin_api_key",
        "id": str(UUID(key["id"])),
        "name": "root",
        "redacted_value": tenant.admin_key[:8] + "...",
        "created_at": key["created_at"],
        "last_used_at": key["last_used_at"],
        "expires_at": None,
        "owner": {"id": str(tenant.organization_id), "type": "organization"},
        "permissions": sorted(key["permissions"]),
    }


async def _many(gateway: Gateway, tenant: Tenant, count: int) -> list[str]:
    """Creates admin keys until the tenant has `count`, and returns their ids in the order of creation."""
    for number in range(count - 1):
        await gateway.services.admin_keys.admin_key_create(
            tenant.organization_id, f"key {number}", ("billing:read",), None
        )
    return [key["id"] for key in (await _list(gateway, tenant, "?limit=100"))["data"]]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
async def test_pages(gateway: Gateway, tenant: Tenant, order: str, limit: int) -> None:
    expected = await _many(gateway, tenant, 4)
    if order == "desc":
        expected.reverse()
    seen: list[str] = []
    query = f"?limit={limit}&order={order}"
    while True:
        page = await _list(gateway, tenant, query)
        ids = [key["id"] for key in page["data"]]
        assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
        seen += ids
        assert page["has_more"] == (len(seen) < 4)
        if not page["has_more"]:
            break
        assert len(ids) == limit
        query = f"?limit={limit}&order={order}&after={page['last_id']}"
    assert seen == expected


async def test_default_page_and_order(gateway: Gateway, tenant: Tenant) -> None:
    ids = await _many(gateway, tenant, 22)
    page = await _list(gateway, tenant)
    assert [key["id"] for key in page["data"]] == ids[:20]
    assert page["has_more"] is True


async def test_end_of_the_list(gateway: Gateway, tenant: Tenant) -> None:
    last = (await _list(gateway, tenant))["last_id"]
    page = await _list(gateway, tenant, f"?after={last}")
    assert page == {
        "object": "list",
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
    }


_WRONG_QUERIES = [
    ("limit=0", 400, "limit"),
    ("limit=101", 400, "limit"),
    ("limit=-1", 400, "limit"),
    ("limit=1.0", 400, "limit"),
    ("limit=1e1", 400, "limit"),
    ("limit=", 400, "limit"),
    ("limit=%201", 400, "limit"),
    ("limit=ten", 400, "limit"),
    ("limit=null", 400, "limit"),
    ("limit=99999999999999999999", 400, "limit"),
    ("limit=1&limit=1", 400, "limit"),
    ("order=up", 400, "order"),
    ("order=ASC", 400, "order"),
    ("order=", 400, "order"),
    ("after=", 400, "after"),
    (f"after={'a' * 201}", 400, "after"),
    (f"after={'a' * 200}", 404, "after"),
    ("after=null", 404, "after"),
    ("after=%00", 404, "after"),
    (f"after={_NOBODY}", 404, "after"),
    (f"after={_NOBODY}&after={_NOBODY}", 400, "after"),
    ("before=x", 400, "before"),
    ("limit[]=1", 400, "limit[]"),
    ("=1", 400, None),
    ("%FF=1", 400, None),
    ("after=%FF", 400, None),
]


@each(("query", "status", "param"), _WRONG_QUERIES)
async def test_wrong_query(
    gateway: Gateway, tenant: Tenant, query: str, status: int, param: str | None
) -> None:
    answer = await gateway.client.get(f"{_ADMIN_KEYS}?{query}", headers=tenant.as_admin)
    assert_error(answer, status, {400: "invalid_request", 404: "not_found"}[status], param)


async def test_revoke(gateway: Gateway, tenant: Tenant) -> None:
    doomed, value = await gateway.services.admin_keys.admin_key_create(
        tenant.organization_id, "doomed", ("admin_api_keys:read",), None
    )
    as_doomed = {"Authorization": f"Bearer {value}"}
    assert (await gateway.client.get(_ADMIN_KEYS, headers=as_doomed)).status_code == 200
    path = f"{_ADMIN_KEYS}/{doomed.id}"
    answer = await gateway.client.delete(path, headers=tenant.as_admin)
    assert answer.status_code == 200
    assert answer.json() == {
        "object": "organization.admin_api_key.deleted",
        "id": str(doomed.id),
        "deleted": True,
    }
    refused = await gateway.client.get(_ADMIN_KEYS, headers=as_doomed)
    assert_error(refused, 401, "invalid_api_key")
    assert [key["name"] for key in (await _list(gateway, tenant))["data"]] == ["root"]
    again = await gateway.client.delete(path, headers=tenant.as_admin)
    assert_error(again, 404, "not_found", "api_key_id")


async def test_concurrent_revocations_have_one_success(gateway: Gateway, tenant: Tenant) -> None:
    ids = await _many(gateway, tenant, 2)
    answers = await asyncio.gather(
        *(
            gateway.client.delete(f"{_ADMIN_KEYS}/{ids[1]}", headers=tenant.as_admin)
            for _ in range(10)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [404] * 9


async def test_key_may_revoke_itself(gateway: Gateway, tenant: Tenant) -> None:
    own = (await _list(gateway, tenant))["first_id"]
    answer = await gateway.client.delete(f"{_ADMIN_KEYS}/{own}", headers=tenant.as_admin)
    assert answer.status_code == 200
    after = await gateway.client.get(_ADMIN_KEYS, headers=tenant.as_admin)
    assert_error(after, 401, "invalid_api_key")


async def test_revoked_key_still_marks_its_place(gateway: Gateway, tenant: Tenant) -> None:
    ids = await _many(gateway, tenant, 4)
    for revoked in ids[1:3]:
        await gateway.client.delete(f"{_ADMIN_KEYS}/{revoked}", headers=tenant.as_admin)
    page = await _list(gateway, tenant, f"?after={ids[1]}")
    assert [key["id"] for key in page["data"]] == [ids[3]]
    page = await _list(gateway, tenant, f"?after={ids[2]}&order=desc")
    assert [key["id"] for key in page["data"]] == [ids[0]]


async def test_project_key_is_no_admin_key(gateway: Gateway, tenant: Tenant) -> None:
    key = (await gateway.services.project_keys.project_key_list(tenant.project_id))[0]
    answer = await gateway.client.delete(f"{_ADMIN_KEYS}/{key.id}", headers=tenant.as_admin)
    assert_error(answer, 404, "not_found", "api_key_id")
    assert await _use(gateway, tenant.project_key) == 200


async def test_operators_states_of_a_project_key(gateway: Gateway, tenant: Tenant) -> None:
    services = gateway.services.project_keys
    key_id = KeyId(UUID((await _create_key(gateway, tenant, {"name": "k"})).json()["id"]))
    statuses = [
        (await change(key_id)).status(gateway.services.clock())
        for change in (
            services.project_key_suspend,
            services.project_key_unsuspend,
            services.project_key_revoke,
        )
    ]
    assert statuses == ["suspended", "active", "revoked"]


async def _row_version(gateway: Gateway, key_id: str) -> tuple[str, Any]:
    """Returns the key's row version, which every write changes, and the time of the last use."""
    async with gateway.services.database.autocommit() as connection:
        cursor = await connection.execute(
            "SELECT xmin::text, last_used_at FROM admin_keys WHERE id = %s", (key_id,)
        )
        row = await cursor.fetchone()
    assert row is not None
    return row[0], row[1]


async def test_last_use_is_written_by_upkeep_and_not_by_requests(
    gateway: Gateway, tenant: Tenant
) -> None:
    before = gateway.services.clock()
    first = await _list(gateway, tenant)
    key_id = first["first_id"]
    version = await _row_version(gateway, key_id)
    for _ in range(5):
        await _list(gateway, tenant)
    assert await _row_version(gateway, key_id) == version == (version[0], None)
    await gateway.services.upkeep.write_key_use()
    used = (await _list(gateway, tenant))["data"][0]["last_used_at"]
    assert before <= used <= gateway.services.clock()


async def test_last_use_of_a_project_key(gateway: Gateway, tenant: Tenant) -> None:
    assert await _use(gateway, tenant.project_key) == 200
    await gateway.services.upkeep.write_key_use()
    key = (await gateway.services.project_keys.project_key_list(tenant.project_id))[0]
    assert key.last_used_at is not None
