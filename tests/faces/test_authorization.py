"""Tests which keys may use which endpoints, every kind of bad credential, and that organizations cannot
reach each other's resources."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.faces.authorization_cases import PROFILES, ROWS, Cell, cells, path_of
from tests.support.gateway import Gateway, Tenant, assert_error
from tests.support.tables import each
from tollkeeper.core.access import KeyKind
from tollkeeper.faces.endpoint import AnyEndpoint
from tollkeeper.faces.routes import EXTENSION_ROUTES, ROUTES
from tollkeeper.tenants.keys import mint_key

Headers = list[tuple[str, str]]


@dataclass(frozen=True)
class Keys:
    """The values of keys in every state. All tests share them, because no test changes a key."""

    by_profile: dict[tuple[KeyKind, str], str] = field(default_factory=dict)
    by_state: dict[tuple[KeyKind, str], str] = field(default_factory=dict)


@pytest.fixture(scope="module")
async def keys(gateway: Gateway) -> Keys:
    found = Keys()
    tenant = await gateway.make_tenant()
    for profile, permissions in PROFILES.items():
        for kind in KeyKind:
            value = await _key(gateway, tenant, kind, permissions)
            found.by_profile[kind, profile] = value
    for kind in KeyKind:
        for state, column in (("revoked", "revoked_at"), ("expired", "expires_at")):
            value = await _key(gateway, tenant, kind, ())
            await _change(gateway, kind, value, f"{column} = now() - interval '1 second'")
            found.by_state[kind, state] = value
    suspended = await _key(gateway, tenant, KeyKind.PROJECT, ())
    await _change(gateway, KeyKind.PROJECT, suspended, "suspended_at = now()")
    found.by_state[KeyKind.PROJECT, "suspended"] = suspended
    archived = await gateway.make_tenant()
    await gateway.services.projects.project_archive(archived.organization_id, archived.project_id)
    found.by_state[KeyKind.PROJECT, "archived project"] = archived.project_key
    return found


async def _key(
    gateway: Gateway, tenant: Tenant, kind: KeyKind, permissions: tuple[str, ...]
) -> str:
    """Creates a key with exactly these permissions, even permissions that keys of this kind cannot get."""
    services = gateway.services
    if kind is KeyKind.ADMIN:
        _, value = await services.admin_keys.admin_key_create(
            tenant.organization_id, f"a {uuid4()}", (), None
        )
    else:
        _, value = await services.project_keys.project_key_create_by_operator(
            tenant.project_id, f"p {uuid4()}", (), None
        )
    quoted = ",".join(permissions)
    await _change(gateway, kind, value, f"permissions = string_to_array('{quoted}', ',')")
    return value


async def _change(gateway: Gateway, kind: KeyKind, value: str, assignment: str) -> None:
    table = {KeyKind.ADMIN: "admin_keys", KeyKind.PROJECT: "project_keys"}[kind]
    async with gateway.services.database.transaction() as connection:
        cursor = await connection.execute(
            f"UPDATE {table} SET {assignment} WHERE digest = sha256(%s)".encode(),
            (value.encode(),),
        )
        assert cursor.rowcount == 1


async def _call(gateway: Gateway, endpoint: AnyEndpoint, headers: Headers) -> httpx2.Response:
    if endpoint.takes_body:
        headers = [*headers, ("Content-Type", "application/json")]
    return await gateway.client.request(
        endpoint.method,
        path_of(endpoint),
        headers=[(name.encode(), value.encode("latin-1")) for name, value in headers],
        content=b"{}" if endpoint.takes_body else None,
    )


def test_every_route_has_its_row() -> None:
    assert {(route.method, route.path) for route in (*ROUTES, *EXTENSION_ROUTES)} == set(ROWS)


def test_the_route_table_says_what_the_interface_says() -> None:
    for route in (*ROUTES, *EXTENSION_ROUTES):
        assert (route.key_kind, route.permission) == ROWS[route.method, route.path]


@each("cell", cells(), ids=lambda cell: cell.id)
async def test_matrix(gateway: Gateway, keys: Keys, cell: Cell) -> None:
    key = keys.by_profile[cell.key_kind, cell.profile]
    answer = await _call(gateway, cell.endpoint, [("Authorization", f"Bearer {key}")])
    if cell.allowed:
        assert answer.status_code not in (401, 403), answer.text
    else:
        assert_error(answer, 403, "permission_denied")


def _bad_checksum(key: str) -> str:
    return key[:-1] + ("A" if key[-1] != "A" else "B")


def _other(kind: KeyKind) -> KeyKind:
    return KeyKind.ADMIN if kind is KeyKind.PROJECT else KeyKind.PROJECT


# Each function builds the headers from an active key of the endpoint's kind with all permissions.
_BAD_CREDENTIALS: dict[str, Callable[[str, KeyKind], Headers]] = {
    "absent": lambda key, kind: [],
    "empty": lambda key, kind: [("Authorization", "")],
    "scheme only": lambda key, kind: [("Authorization", "Bearer")],
    "no scheme": lambda key, kind: [("Authorization", key)],
    "wrong scheme": lambda key, kind: [("Authorization", f"Basic {key}")],
    "malformed": lambda key, kind: [("Authorization", "Bearer hello")],
    "not ASCII": lambda key, kind: [("Authorization", f"Bearer {key[:-1]}\xe9")],
    "bad checksum": lambda key, kind: [("Authorization", f"Bearer {_bad_checksum(key)}")],
    "other prefix": lambda key, kind: [
        ("Authorization", f"Bearer {mint_key(_other(kind)).value[:4]}{key[4:]}")
    ],
    "unknown": lambda key, kind: [("Authorization", f"Bearer {mint_key(kind).value}")],
    "cut": lambda key, kind: [("Authorization", f"Bearer {key[:-1]}")],
    "garbage after": lambda key, kind: [("Authorization", f"Bearer {key}x")],
    "words after": lambda key, kind: [("Authorization", f"Bearer {key} x")],
    "comma after": lambda key, kind: [("Authorization", f"Bearer {key},")],
    "two in one": lambda key, kind: [("Authorization", f"Bearer {key}, Bearer {key}")],
    "two headers": lambda key, kind: [("Authorization", f"Bearer {key}")] * 2,
    "quoted": lambda key, kind: [("Authorization", f'Bearer "{key}"')],
    "in a cookie": lambda key, kind: [("Cookie", f"api_key={key}")],
}


every_endpoint = pytest.mark.parametrize("endpoint", ROUTES, ids=lambda route: route.operation)


@every_endpoint
async def test_bad_credential(gateway: Gateway, keys: Keys, endpoint: AnyEndpoint) -> None:
    live = keys.by_profile[endpoint.key_kind, "all"]
    await _assert_all_unauthenticated(
        gateway,
        endpoint,
        {case: make(live, endpoint.key_kind) for case, make in _BAD_CREDENTIALS.items()},
    )


@every_endpoint
async def test_key_that_is_not_live(gateway: Gateway, keys: Keys, endpoint: AnyEndpoint) -> None:
    """An inactive key gets 401 even if it also has the wrong kind for the endpoint."""
    assert len(keys.by_state) == 6
    await _assert_all_unauthenticated(
        gateway,
        endpoint,
        {
            f"{state} {kind} key": [("Authorization", f"Bearer {key}")]
            for (kind, state), key in keys.by_state.items()
        },
    )


async def _assert_all_unauthenticated(
    gateway: Gateway, endpoint: AnyEndpoint, cases: dict[str, Headers]
) -> None:
    answers = await asyncio.gather(
        *(_call(gateway, endpoint, headers) for headers in cases.values())
    )
    for case, answer in zip(cases, answers, strict=True):
        assert answer.status_code == 401, f"{case}: {answer.text}"
        _assert_unauthenticated(answer)


def _assert_unauthenticated(answer: httpx2.Response) -> None:
    assert_error(answer, 401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


_CUSTOMER_ROUTES = [route for route in ROUTES if route.key_kind is KeyKind.PROJECT]
_ADMIN_ROUTES = [route for route in ROUTES if route.key_kind is KeyKind.ADMIN]


@each("endpoint", _CUSTOMER_ROUTES, ids=lambda route: route.operation)
async def test_customer_header_key(gateway: Gateway, keys: Keys, endpoint: AnyEndpoint) -> None:
    key = keys.by_profile[KeyKind.PROJECT, "all"]
    bearer, header = ("Authorization", f"Bearer {key}"), ("x-api-key", key)
    accepted: list[Headers] = [
        [header],
        [bearer, header],
        [("X-API-KEY", key)],
        [("Authorization", f"bearer {key}")],
        [bearer, ("x-api-key", "")],
        [header, ("x-api-key", "")],
        *(
            [("Authorization", ignored), header]
            for ignored in ("", "Bearer", "Basic YTpi", "hello")
        ),
    ]
    for headers in accepted:
        answer = await _call(gateway, endpoint, headers)
        assert answer.status_code not in (401, 403), (headers, answer.text)


@each("endpoint", _CUSTOMER_ROUTES, ids=lambda route: route.operation)
async def test_two_different_customer_keys(
    gateway: Gateway, keys: Keys, endpoint: AnyEndpoint
) -> None:
    key, other = (keys.by_profile[KeyKind.PROJECT, name] for name in ("all", "models:read"))
    refused: list[Headers] = [
        [("Authorization", f"Bearer {key}"), ("x-api-key", other)],
        [("x-api-key", key), ("x-api-key", other)],
        [("x-api-key", key), ("x-api-key", ""), ("x-api-key", other)],
        [("Authorization", "Basic YTpi"), ("x-api-key", "")],
        [("Authorization", ""), ("x-api-key", "")],
        [("x-api-key", "")],
        [("x-api-key", f"Bearer {key}")],
    ]
    for headers in refused:
        _assert_unauthenticated(await _call(gateway, endpoint, headers))


@each("endpoint", _ADMIN_ROUTES, ids=lambda route: route.operation)
async def test_header_key_is_nothing_on_organization_routes(
    gateway: Gateway, keys: Keys, endpoint: AnyEndpoint
) -> None:
    admin = keys.by_profile[KeyKind.ADMIN, "all"]
    _assert_unauthenticated(await _call(gateway, endpoint, [("x-api-key", admin)]))


async def test_keys_that_share_their_beginning_are_different_keys(
    gateway: Gateway, tenant: Tenant
) -> None:
    """An authentication cache that uses a part of the token as its key would accept a wrong key."""
    twin = mint_key(KeyKind.ADMIN).value
    for length in (20, 40):
        mixed = tenant.admin_key[:length] + twin[length:]
        headers = {"Authorization": f"Bearer {mixed}"}
        _assert_unauthenticated(await gateway.client.get("/v1/organization/costs", headers=headers))


# The tests below check that an id of another organization gets the same answer as an unknown id.

_RANDOM_UUID = "7f3d2f7e-5a0c-4a5e-9d5f-0d3c1b2a4e5f"
_RANDOM_POLICY = "pol_0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Foreign:
    """The ids of another organization's resources."""

    project: str
    policy: str
    project_key: str
    admin_key: str


@pytest.fixture
async def foreign(gateway: Gateway) -> Foreign:
    other = await gateway.make_tenant("Other")
    policy = await gateway.make_policy(other)
    listed = await gateway.client.get("/v1/organization/admin_api_keys", headers=other.as_admin)
    project_keys = await gateway.services.project_keys.project_key_list(other.project_id)
    return Foreign(
        project=str(other.project_id),
        policy=policy["id"],
        project_key=str(project_keys[0].id),
        admin_key=listed.json()["data"][0]["id"],
    )


_NOBODY = Foreign(_RANDOM_UUID, _RANDOM_POLICY, _RANDOM_UUID, _RANDOM_UUID)
_POLICY = {"name": "n", "rule": "r?", "scope": "projects"}

# Operation and the parameter with the id -> method, path and body.
_WALL: dict[str, Callable[[Foreign], tuple[str, str, Mapping[str, Any] | None]]] = {
    "policy_show": lambda ids: ("GET", f"/policies/{ids.policy}", None),
    "policy_edit": lambda ids: ("PATCH", f"/policies/{ids.policy}", {"revision": 1}),
    "policy_pause": lambda ids: ("POST", f"/policies/{ids.policy}/pause", {"revision": 1}),
    "policy_create project_ids": lambda ids: (
        "POST",
        "/policies",
        {**_POLICY, "project_ids": [ids.project]},
    ),
    "effective_policy_list": lambda ids: (
        "GET",
        f"/projects/{ids.project}/effective_policies",
        None,
    ),
    "project_key_create": lambda ids: ("POST", f"/projects/{ids.project}/api_keys", {"name": "k"}),
    "project_archive": lambda ids: ("POST", f"/projects/{ids.project}/archive", None),
    "admin_key_revoke": lambda ids: ("DELETE", f"/admin_api_keys/{ids.admin_key}", None),
    "admin_key_list after": lambda ids: ("GET", f"/admin_api_keys?after={ids.admin_key}", None),
    "cost_report project_ids": lambda ids: (
        "GET",
        f"/costs?start_time=0&project_ids={ids.project}",
        None,
    ),
    "cost_report api_key_ids": lambda ids: (
        "GET",
        f"/costs?start_time=0&api_key_ids={ids.project_key}",
        None,
    ),
}


def test_every_route_with_an_id_is_behind_the_wall() -> None:
    tried = {case.split()[0] for case in _WALL}
    assert {route.operation for route in _ADMIN_ROUTES if "{" in route.path} <= tried


@each("case", _WALL)
async def test_wall_between_organizations(
    gateway: Gateway, tenant: Tenant, foreign: Foreign, case: str
) -> None:
    bodies = []
    for ids in (foreign, _NOBODY):
        method, path, body = _WALL[case](ids)
        answer = await gateway.client.request(
            method,
            f"/v1/organization{path}",
            json=body,
            headers={**tenant.as_admin, "Idempotency-Key": "a-key-of-mine"},
        )
        assert answer.status_code == 404, answer.text
        bodies.append(_without_ids(answer, ids))
    assert bodies[0] == bodies[1]


def _without_ids(answer: httpx2.Response, ids: Foreign) -> str:
    text = answer.text.replace(answer.headers["x-request-id"], "")
    for identity in (ids.project, ids.policy, ids.project_key, ids.admin_key):
        text = text.replace(identity, "ID")
    return text


async def test_refused_edit_of_another_organization_changes_nothing(
    gateway: Gateway, tenant: Tenant
) -> None:
    other = await gateway.make_tenant("Other")
    policy = await gateway.make_policy(other)
    path = f"/v1/organization/policies/{policy['id']}"
    body = {"revision": 1, "name": "taken over"}
    answer = await gateway.client.patch(path, json=body, headers=tenant.as_admin)
    assert_error(answer, 404, "not_found", "policy_id")
    assert (await gateway.client.get(path, headers=other.as_admin)).json() == policy
