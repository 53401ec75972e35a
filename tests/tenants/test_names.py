"""Tests that names in use are unique and can be changed, and that the keys of an archived organization
are refused."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.gateway import Gateway, Tenant, assert_error, idempotency_key
from tollkeeper.core.access import ADMIN_PERMISSIONS, KeyId
from tollkeeper.core.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.setup.demonstration import Demonstration
from tollkeeper.tenants.audit.rule import AuditEntry

_CONCURRENT = 8


def _name() -> str:
    return f"Name {uuid4().hex}"


async def _only_one(create: Callable[[], Awaitable[object]]) -> None:
    """Runs `create` several times concurrently, and checks that only one run succeeds."""
    results = await asyncio.gather(*(create() for _ in range(_CONCURRENT)), return_exceptions=True)
    assert sum(isinstance(result, StateConflict) for result in results) == _CONCURRENT - 1, results


async def _last_change(gateway: Gateway, object_id: object) -> AuditEntry:
    page = await gateway.services.audit.audit_list(object_id=str(object_id), limit=1)
    return page.entries[0]


async def test_an_organization_name_is_taken_once(gateway: Gateway) -> None:
    organizations, name = gateway.services.organizations, _name()
    first = await organizations.organization_create(f"  {name} ")
    assert first.name == name
    for same in (name, name.upper(), f"\t{name}\n"):
        with pytest.raises(StateConflict, match=str(first.id)) as refused:
            await organizations.organization_create(same)
        assert refused.value.param == "name"
    with pytest.raises(InvalidRequest):
        await organizations.organization_create("  ")


async def test_names_are_unique_when_they_are_created_at_once(
    gateway: Gateway, tenant: Tenant
) -> None:
    services, name = gateway.services, _name()
    await _only_one(lambda: services.organizations.organization_create(name))
    organization, project = tenant.organization_id, tenant.project_id
    await _only_one(lambda: services.projects.project_create(organization, "Web"))
    await _only_one(
        lambda: services.project_keys.project_key_create_by_operator(project, "web", None, None)
    )
    await _only_one(lambda: services.admin_keys.admin_key_create(organization, "ops", (), None))


async def test_a_project_name_is_taken_once_in_its_organization(
    gateway: Gateway, tenant: Tenant
) -> None:
    services, other = gateway.services, await gateway.make_tenant()
    first = await services.projects.project_create(tenant.organization_id, "Web")
    with pytest.raises(StateConflict, match=str(first.id)):
        await services.projects.project_create(tenant.organization_id, "web")
    await services.projects.project_create(other.organization_id, "Web")
    # The name is free again.
    await services.projects.project_archive(tenant.organization_id, first.id)
    second = await services.projects.project_create(tenant.organization_id, "Web")
    assert await services.names.project_named("web", tenant.organization_id) == second.id
    assert await services.names.project_named(str(first.id)) == first.id


async def test_a_key_name_is_taken_once_among_usable_keys(gateway: Gateway, tenant: Tenant) -> None:
    services, name = gateway.services, _name()

    async def create() -> KeyId:
        key, _ = await services.project_keys.project_key_create_by_operator(
            tenant.project_id, name, None, None
        )
        return key.id

    first = await create()
    with pytest.raises(StateConflict, match=str(first)):
        await create()
    await services.project_keys.project_key_suspend(first)
    with pytest.raises(StateConflict, match=str(first)):
        await create()
    await services.project_keys.project_key_revoke(first)
    second = await create()
    assert await services.names.project_key_named(name) == second
    # While both keys work, a key and its replacement have the same name, so the name is ambiguous.
    rotation = await services.project_keys.project_key_rotate(second, 3600)
    assert rotation.new.name == name
    with pytest.raises(StateConflict, match=str(second)):
        await services.names.project_key_named(name)


async def test_an_admin_key_name_is_taken_once(gateway: Gateway, tenant: Tenant) -> None:
    services, name = gateway.services, _name()
    first, _ = await services.admin_keys.admin_key_create(
        tenant.organization_id, name, ADMIN_PERMISSIONS, None
    )
    with pytest.raises(StateConflict, match=str(first.id)):
        await services.admin_keys.admin_key_create(tenant.organization_id, name, (), None)
    await services.admin_keys.admin_key_revoke(tenant.organization_id, first.id)
    second, _ = await services.admin_keys.admin_key_create(tenant.organization_id, name, (), None)
    assert await services.names.admin_key_named(name) == second.id


async def test_the_api_still_accepts_every_key_name(gateway: Gateway, tenant: Tenant) -> None:
    for _ in range(2):
        answer = await gateway.client.post(
            f"/v1/organization/projects/{tenant.project_id}/api_keys",
            json={"name": "app"},
            headers={**tenant.as_admin, **idempotency_key()},
        )
        assert answer.status_code == 200, answer.text


async def test_duplicates_of_older_releases_are_told_apart_by_renaming_one(
    gateway: Gateway,
) -> None:
    services, name = gateway.services, _name()
    first = await services.organizations.organization_create(name)
    second = await services.organizations.organization_create(_name())
    async with services.database.transaction() as connection:
        await connection.execute(
            "UPDATE organizations SET name = %s WHERE id = %s", (name, second.id)
        )
    with pytest.raises(StateConflict, match="fits more than one organization"):
        await services.names.organization_named(name)
    await services.organizations.organization_rename(second.id, f"{name} 2")
    assert await services.names.organization_named(name) == first.id
    assert await services.names.organization_named(f"{name} 2") == second.id


async def test_renames_are_checked_and_audited(gateway: Gateway, tenant: Tenant) -> None:
    services, new = gateway.services, _name()
    project_key, _ = await services.project_keys.project_key_create_by_operator(
        tenant.project_id, "second", None, None
    )
    admin_key, _ = await services.admin_keys.admin_key_create(
        tenant.organization_id, "second", (), None
    )
    other = await gateway.make_tenant()
    other_name = (await services.organizations.organization_show(other.organization_id)).name
    second = await services.projects.project_create(tenant.organization_id, "second")
    renamed: tuple[tuple[Any, UUID, str], ...] = (
        (services.organizations.organization_rename, tenant.organization_id, other_name),
        (services.projects.project_rename, second.id, "acme PROJECT"),
        (services.project_keys.project_key_rename, project_key.id, "app"),
        (services.admin_keys.admin_key_rename, admin_key.id, "root"),
    )
    for rename, identity, taken in renamed:
        with pytest.raises(StateConflict, match="already"):
            await rename(identity, taken)
        # An object may get its own present name again, in another case.
        for name in (f" {new} ", new.upper()):
            assert (await rename(identity, name)).name == name.strip()
        with pytest.raises(InvalidRequest):
            await rename(identity, "n" * 257)
        with pytest.raises(NotFound):
            await rename(uuid4(), _name())
        change = (await _last_change(gateway, identity)).change
        assert change.operation == rename.__name__
        assert (change.before, change.after) == ({"name": new}, {"name": new.upper()})
    owner = (await services.project_keys.project_key_list(tenant.project_id))[0]
    assert owner.project_name == "Acme project"


async def test_archiving_an_organization_refuses_all_its_keys(
    gateway: Gateway, tenant: Tenant
) -> None:
    services, organization = gateway.services, tenant.organization_id
    second = await services.projects.project_create(organization, "second")
    _, second_key = await services.project_keys.project_key_create_by_operator(
        second.id, "app", None, None
    )
    other = await gateway.make_tenant()
    found = await services.organizations.organization_show(organization)
    assert (found.status, found.archived_at) == ("active", None)
    archived = await services.organizations.organization_archive(organization)
    assert archived.status == "archived"
    assert await services.organizations.organization_archive(organization) == archived

    body = {"model": "example", "messages": [{"role": "user", "content": "Hello"}]}
    for key in (tenant.project_key, second_key):
        answer = await gateway.client.post(
            "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}
        )
        assert_error(answer, 401, "invalid_api_key")
    answer = await gateway.client.get("/v1/models/example", headers=other.as_customer)
    assert answer.status_code != 401
    # The admin key can still read the costs.
    costs = await gateway.client.get("/v1/organization/costs?start_time=1", headers=tenant.as_admin)
    assert costs.status_code == 200, costs.text

    for create in (
        services.projects.project_create(organization, "third"),
        services.admin_keys.admin_key_create(organization, "third", (), None),
        services.project_keys.project_key_create_by_operator(second.id, "third", None, None),
    ):
        with pytest.raises(StateConflict, match="archived"):
            await create
    change = (await _last_change(gateway, organization)).change
    assert change.operation == "organization_archive"
    assert change.after is not None
    assert change.after["archived_at"] == archived.archived_at
    change = (await _last_change(gateway, second.id)).change
    assert change.operation == "project_archive"
    # The name is free again.
    successor = await services.organizations.organization_create(found.name)
    assert await services.names.organization_named(found.name) == successor.id
    with pytest.raises(NotFound):
        await services.organizations.organization_archive(uuid4())  # type: ignore[arg-type]


async def test_a_demo_whose_keys_are_lost_is_created_again(gateway: Gateway) -> None:
    services = gateway.services
    demonstration = Demonstration(
        services.organizations,
        services.projects,
        services.admin_keys,
        services.project_keys,
        services.accounts,
    )
    first, second = [await demonstration.demo_create() for _ in range(2)]
    assert first.organization_id != second.organization_id


async def test_no_project_is_created_while_its_organization_is_archived(
    gateway: Gateway, tenant: Tenant
) -> None:
    services, organization = gateway.services, tenant.organization_id
    await asyncio.gather(
        services.organizations.organization_archive(organization),
        *(services.projects.project_create(organization, f"p{at}") for at in range(_CONCURRENT)),
        return_exceptions=True,
    )
    projects = await services.projects.project_list(organization)
    assert {project.status for project in projects} == {"archived"}
