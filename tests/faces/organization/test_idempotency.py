"""Tests that requests with the same Idempotency-Key create one resource and get the same answer, and that
the stored secret of a key is deleted after a day."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.http.raw_http import ask
from tests.support.gateway import Gateway, Tenant, assert_error, idempotency_key, running_gateway
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.setup.settings import Settings
from tollkeeper.tenants.keys import key_digest

_DAY_S = 24 * 3600
_KEY = "Idempotency-Key"
_POLICY = {"name": "n", "rule": "r?"}

# Path and body of the two requests that create a resource.
_CREATIONS: dict[str, Callable[[Tenant], tuple[str, dict[str, Any]]]] = {
    "policy": lambda tenant: ("/v1/organization/policies", _POLICY),
    "project key": lambda tenant: (
        f"/v1/organization/projects/{tenant.project_id}/api_keys",
        {"name": "k"},
    ),
}
both_creations = pytest.mark.parametrize("creation", _CREATIONS)


async def _create(
    gateway: Gateway,
    tenant: Tenant,
    creation: str,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> httpx2.Response:
    path, body = _CREATIONS[creation](tenant)
    return await gateway.client.post(
        path, json={**body, **fields}, headers={**tenant.as_admin, **(headers or {})}
    )


async def _count(gateway: Gateway, organization_id: OrganizationId) -> int:
    """Returns the number of policies and project keys of an organization together."""
    async with gateway.services.database.autocommit() as connection:
        cursor = await connection.execute(
            """
            SELECT (SELECT count(*) FROM policies WHERE organization_id = %(id)s)
                 + (SELECT count(*) FROM project_keys WHERE organization_id = %(id)s)
            """,
            {"id": organization_id},
        )
        row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


@both_creations
@pytest.mark.parametrize("key", ["", "1234567", "x" * 201, "a\tb\tc\td\te", "кириллица"])
async def test_unusable_key(gateway: Gateway, tenant: Tenant, creation: str, key: str) -> None:
    path, body = _CREATIONS[creation](tenant)
    headers = [
        (b"Authorization", f"Bearer {tenant.admin_key}".encode()),
        (_KEY.encode(), key.encode()),
    ]
    answer = await gateway.client.post(path, json=body, headers=headers)
    assert_error(answer, 400, "invalid_request", _KEY)


@pytest.mark.parametrize(
    ("key", "param"),
    [
        (b"!      ~", None),
        (bytes(range(0x21, 0x7F)), None),
        # HTTP drops the blanks, so seven characters are left.
        (b"  1234567  ", _KEY),
        (b"1234567\x80", _KEY),
        # Not allowed in any header.
        (b"1234567\x7f", ""),
        (b"1234567\x1f", ""),
    ],
)
async def test_printable_is_ascii_without_control_characters(
    gateway: Gateway, tenant: Tenant, key: bytes, param: str | None
) -> None:
    path, body = _CREATIONS["policy"](tenant)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.admin_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(json.dumps(body))}\r\n"
    )
    answer = await ask(
        gateway, head.encode() + b"%b: %b\r\n\r\n" % (_KEY.encode(), key), json.dumps(body).encode()
    )
    if param is None:
        assert answer.status == 200
    else:
        assert (answer.status, answer.json()["error"]["param"]) == (400, param or None)


@both_creations
async def test_missing_key(gateway: Gateway, tenant: Tenant, creation: str) -> None:
    assert_error(await _create(gateway, tenant, creation), 400, "invalid_request", _KEY)


@both_creations
async def test_two_keys(gateway: Gateway, tenant: Tenant, creation: str) -> None:
    path, body = _CREATIONS[creation](tenant)
    headers = [*tenant.as_admin.items(), (_KEY, "12345678"), (_KEY, "87654321")]
    answer = await gateway.client.post(path, json=body, headers=headers)
    assert_error(answer, 400, "invalid_request", _KEY)


@both_creations
async def test_key_bounds(gateway: Gateway, tenant: Tenant, creation: str) -> None:
    for key in ("12345678", "x" * 200, "!~ with spaces ~!", "'; DROP TABLE idempotency_records"):
        answer = await _create(gateway, tenant, creation, {_KEY: key})
        assert answer.status_code == 200, answer.text


@both_creations
async def test_identical_replay(gateway: Gateway, tenant: Tenant, creation: str) -> None:
    headers = idempotency_key()
    first = await _create(gateway, tenant, creation, headers)
    before = await _count(gateway, tenant.organization_id)
    again = await _create(gateway, tenant, creation, headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json() == first.json()
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert await _count(gateway, tenant.organization_id) == before
    if creation == "project key":
        assert again.json()["value"] == first.json()["value"]


async def test_replay_is_compared_by_meaning(gateway: Gateway, tenant: Tenant) -> None:
    headers = {**tenant.as_admin, **idempotency_key(), "Content-Type": "application/json"}
    spellings = [
        b'{"name": "n", "rule": "r?"}',
        b'{"rule": "r?",\n\t"name": "n"}',
        b'{"rule": "\\u0072?", "name": "\\u006e"}',
        b'{"rule": "r?", "name": "n", "direction": "both", "match_threshold_basis_points": null}',
    ]
    answers = [
        await gateway.client.post("/v1/organization/policies", content=body, headers=headers)
        for body in spellings
    ]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_a_replay_may_write_the_project_id_in_upper_case(
    gateway: Gateway, tenant: Tenant
) -> None:
    headers = {**tenant.as_admin, **idempotency_key()}
    project_id = str(tenant.project_id)
    answers = [
        await gateway.client.post(
            f"/v1/organization/projects/{text}/api_keys", json={"name": "k"}, headers=headers
        )
        for text in (project_id, project_id.upper())
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()


async def test_a_replay_may_write_the_projects_of_a_policy_in_another_way(
    gateway: Gateway, tenant: Tenant
) -> None:
    """Each of these lists creates the same policy."""
    headers = idempotency_key()
    project = str(tenant.project_id)
    answers = [
        await _create(gateway, tenant, "policy", headers, project_ids=projects)
        for projects in ([project], [project.upper()], [project, project.upper()])
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert [answer.json()["draft"]["project_ids"] for answer in answers] == [[project]] * 3
    assert len({answer.json()["id"] for answer in answers}) == 1
    _assert_conflict(await _create(gateway, tenant, "policy", headers, project_ids=[]))


async def test_replay_shows_the_resource_as_it_is_now(gateway: Gateway, tenant: Tenant) -> None:
    headers = idempotency_key()
    created = (await _create(gateway, tenant, "policy", headers)).json()
    edited = await gateway.client.patch(
        f"/v1/organization/policies/{created['id']}",
        json={"revision": 1, "name": "renamed"},
        headers=tenant.as_admin,
    )
    assert (await _create(gateway, tenant, "policy", headers)).json() == edited.json()


def _assert_conflict(answer: httpx2.Response) -> None:
    assert_error(answer, 409, "idempotency_conflict", _KEY)
    assert answer.headers["x-should-retry"] == "false"


@both_creations
async def test_changed_body(gateway: Gateway, tenant: Tenant, creation: str) -> None:
    headers = idempotency_key()
    first = await _create(gateway, tenant, creation, headers)
    before = await _count(gateway, tenant.organization_id)
    _assert_conflict(await _create(gateway, tenant, creation, headers, name="other"))
    assert await _count(gateway, tenant.organization_id) == before
    assert (await _create(gateway, tenant, creation, headers)).json() == first.json()


async def test_other_project_under_the_same_key(gateway: Gateway, tenant: Tenant) -> None:
    headers = {**tenant.as_admin, **idempotency_key()}
    other = await gateway.services.projects.project_create(tenant.organization_id, "other")
    answers = [
        await gateway.client.post(
            f"/v1/organization/projects/{project_id}/api_keys", json={"name": "k"}, headers=headers
        )
        for project_id in (tenant.project_id, other.id)
    ]
    assert answers[0].status_code == 200
    _assert_conflict(answers[1])


async def test_operations_do_not_share_keys(gateway: Gateway, tenant: Tenant) -> None:
    headers = idempotency_key()
    answers = [await _create(gateway, tenant, creation, headers) for creation in _CREATIONS]
    assert [answer.status_code for answer in answers] == [200, 200]


@both_creations
async def test_organizations_do_not_share_keys(
    gateway: Gateway, tenant: Tenant, creation: str
) -> None:
    headers = idempotency_key()
    other = await gateway.make_tenant("Other")
    first = await _create(gateway, tenant, creation, headers)
    second = await _create(gateway, other, creation, headers)
    third = await _create(gateway, other, creation, headers, name="changed")
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json()["id"] != second.json()["id"]
    _assert_conflict(third)


async def test_another_admin_key_of_the_organization_may_replay(
    gateway: Gateway, tenant: Tenant
) -> None:
    headers = idempotency_key()
    first = await _create(gateway, tenant, "project key", headers)
    colleague = await gateway.admin_key(tenant, "project_api_keys:create")
    again = await _create(gateway, tenant, "project key", {**headers, **colleague})
    assert again.json() == first.json()
    stranger = await gateway.admin_key(tenant, "policies:write")
    refused = await _create(gateway, tenant, "project key", {**headers, **stranger})
    assert_error(refused, 403, "permission_denied")


async def test_failure_is_not_remembered(gateway: Gateway, tenant: Tenant) -> None:
    headers = idempotency_key()
    nobody = "7f3d2f7e-5a0c-4a5e-9d5f-0d3c1b2a4e5f"
    refused = await _create(gateway, tenant, "policy", headers, project_ids=[nobody])
    assert_error(refused, 404, "not_found", "project_ids[0]")
    assert_error(
        await _create(gateway, tenant, "policy", headers, rule="no question"),
        400,
        "invalid_request",
        "rule",
    )
    assert (await _create(gateway, tenant, "policy", headers)).status_code == 200


async def test_failed_key_creation_is_not_remembered(gateway: Gateway, tenant: Tenant) -> None:
    headers = {**tenant.as_admin, **idempotency_key()}
    doomed = await gateway.services.projects.project_create(tenant.organization_id, "doomed")
    await gateway.services.projects.project_archive(tenant.organization_id, doomed.id)
    refused = await gateway.client.post(
        f"/v1/organization/projects/{doomed.id}/api_keys", json={"name": "k"}, headers=headers
    )
    assert_error(refused, 409, "state_conflict", "project_id")
    accepted = await gateway.client.post(
        f"/v1/organization/projects/{tenant.project_id}/api_keys",
        json={"name": "k"},
        headers=headers,
    )
    assert accepted.status_code == 200


@both_creations
async def test_hundred_concurrent_twins(gateway: Gateway, tenant: Tenant, creation: str) -> None:
    headers = idempotency_key()
    before = await _count(gateway, tenant.organization_id)
    answers = await asyncio.gather(
        *(_create(gateway, tenant, creation, headers) for _ in range(100))
    )
    assert await _count(gateway, tenant.organization_id) == before + 1
    made = [answer for answer in answers if answer.status_code == 200]
    assert made
    assert all(answer.json() == made[0].json() for answer in made)
    for answer in answers:
        if answer.status_code != 200:
            _assert_conflict(answer)


async def test_concurrent_different_bodies_have_one_winner(
    gateway: Gateway, tenant: Tenant
) -> None:
    headers = idempotency_key()
    before = await _count(gateway, tenant.organization_id)
    answers = await asyncio.gather(
        *(
            _create(gateway, tenant, "policy", headers, name=f"writer {number}")
            for number in range(20)
        )
    )
    assert await _count(gateway, tenant.organization_id) == before + 1
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 19


async def test_twin_that_still_runs(gateway: Gateway, tenant: Tenant) -> None:
    """The first request has stored the key and not ended. A second request must not wait for it."""
    headers = idempotency_key()
    async with gateway.services.database.transaction() as connection:
        await connection.execute(
            """
            INSERT INTO idempotency_records (organization_id, operation, key_digest,
                                             request_digest, resource_id, created_at)
            VALUES (%s, 'policy_create', sha256(%s), sha256('x'), 'x', now())
            """,
            (tenant.organization_id, headers[_KEY].encode()),
        )
        _assert_conflict(await _create(gateway, tenant, "policy", headers))
        await connection.execute("DELETE FROM idempotency_records WHERE resource_id = 'x'")
    assert (await _create(gateway, tenant, "policy", headers)).status_code == 200


async def test_value_is_gone_after_a_day(
    gateway: Gateway, settings: Settings, conninfo: str, tenant: Tenant
) -> None:
    headers = idempotency_key()
    first = (await _create(gateway, tenant, "project key", headers)).json()
    for later_s, kept in ((_DAY_S - 60, True), (_DAY_S + 60, False)):
        async with running_gateway(
            settings,
            conninfo,
            clock=lambda later_s=later_s: unix_now() + later_s,  # type: ignore[misc]
        ) as later:
            answer = await _create(later, tenant, "project key", headers)
        assert answer.status_code == 200
        expected = first if kept else {key: first[key] for key in first if key != "value"}
        assert answer.json() == expected


async def test_upkeep_forgets_secrets_after_a_day(gateway: Gateway, tenant: Tenant) -> None:
    headers = idempotency_key()
    await _create(gateway, tenant, "project key", headers)

    async def sealed() -> int:
        async with gateway.services.database.autocommit() as connection:
            cursor = await connection.execute(
                "SELECT count(sealed_secret) FROM idempotency_records WHERE organization_id = %s",
                (tenant.organization_id,),
            )
            row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    await gateway.services.upkeep.forget_secrets()
    assert await sealed() == 1
    # Makes the records of this organization a day older. Other tests still need their secrets.
    async with gateway.services.database.transaction() as connection:
        await connection.execute(
            """
            UPDATE idempotency_records SET created_at = created_at - interval '1 day 1 second'
            WHERE organization_id = %s
            """,
            (tenant.organization_id,),
        )
    await gateway.services.upkeep.forget_secrets()
    assert await sealed() == 0
    answer = await _create(gateway, tenant, "project key", headers)
    assert answer.status_code == 200
    assert "value" not in answer.json()


async def test_database_reveals_no_key(gateway: Gateway, tenant: Tenant) -> None:
    headers = idempotency_key()
    value = (await _create(gateway, tenant, "project key", headers)).json()["value"]
    dump = await _dump(gateway)
    digest = key_digest(value).hex()
    assert digest in dump, "the dump sees what is stored"
    shown = value[:8]
    secrets = [value, tenant.admin_key, tenant.project_key, headers[_KEY]]
    for secret in secrets:
        assert secret not in dump
        assert secret.encode().hex() not in dump
    # After the shown prefix, no part of the key is stored, neither as text nor in hexadecimal.
    for start in range(len(shown), len(value) - 6):
        assert value[start : start + 7] not in dump
        assert value[start : start + 7].encode().hex() not in dump


async def _dump(gateway: Gateway) -> str:
    """Returns every column of every table as text, with bytes as hexadecimal digits."""
    async with gateway.services.database.autocommit() as connection:
        cursor = await connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        )
        tables = [row[0] for row in await cursor.fetchall()]
        assert {"project_keys", "idempotency_records"} <= set(tables)
        found = []
        for table in tables:
            cursor = await connection.execute(f'SELECT to_jsonb(t) FROM "{table}" t'.encode())
            found += [json.dumps(row[0]) for row in await cursor.fetchall()]
    return "\n".join(found)


async def test_another_installations_secret_unseals_nothing(
    gateway: Gateway, settings: Settings, conninfo: str, tenant: Tenant, tmp_path: Any
) -> None:
    """A gateway with this database and another master secret returns the resource without its value."""
    headers = idempotency_key()
    first = (await _create(gateway, tenant, "project key", headers)).json()
    secret_file = tmp_path / "master.key"
    secret_file.write_text("x" * 64)
    elsewhere = settings.model_copy(
        update={
            "secrets": settings.secrets.model_copy(update={"master_key": f"file:{secret_file}"})
        }
    )
    async with running_gateway(elsewhere, conninfo) as thief:
        answer = await _create(thief, tenant, "project key", headers)
    assert answer.status_code == 200
    assert answer.json() == {key: first[key] for key in first if key != "value"}
