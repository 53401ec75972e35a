"""Tests that the audit records every change once, with its actor and without secrets."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.support.gateway import Gateway, Tenant, idempotency_key
from tollkeeper.core.access import ADMIN_PERMISSIONS, KeyId, OrganizationId
from tollkeeper.core.errors import NotFound, StateConflict
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.setup.settings import Settings
from tollkeeper.tenants.audit import service
from tollkeeper.tenants.audit.rule import Actor, ActorKind, AuditEntry
from tollkeeper.tenants.audit.service import SYSTEM, Audit, _actor, acting_as, differing

_ALICE = Actor(ActorKind.CONSOLE, "alice")


@pytest.fixture
async def tenant(gateway: Gateway) -> Tenant:
    return await gateway.make_recorded_tenant()


async def _entries(gateway: Gateway, tenant: Tenant, **filters: Any) -> list[AuditEntry]:
    page = await gateway.services.audit.audit_list(
        organization_id=tenant.organization_id, **filters
    )
    return page.entries


async def test_every_change_of_a_tenant_is_recorded(gateway: Gateway, tenant: Tenant) -> None:
    services = gateway.services
    organization, project = tenant.organization_id, tenant.project_id
    with acting_as(_ALICE):
        key, _ = await services.project_keys.project_key_create_by_operator(
            project, "second", None, None
        )
        await services.project_keys.project_key_suspend(key.id)
        await services.project_keys.project_key_unsuspend(key.id)
        await services.project_keys.project_key_revoke(key.id)
        admin, _ = await services.admin_keys.admin_key_create(
            organization, "second", ADMIN_PERMISSIONS, None
        )
        await services.admin_keys.admin_key_revoke(organization, admin.id)
        await services.organizations.organization_grant_check(organization, "kyc")
        await services.organizations.organization_revoke_check(organization, "kyc")
        await services.accounts.credit_grant(organization, 5 * 10**12, "first")
        await services.caps.cap_set(organization, 10**12, CapPeriod.MONTH)
        await services.caps.cap_set(organization, 2 * 10**12, CapPeriod.TOTAL, project)
        await services.caps.cap_clear(organization)
        await services.accounts.limit_set(project, 100, "default")
        await services.projects.project_archive(organization, project)
    found = list(reversed(await _entries(gateway, tenant)))[4:]
    assert [entry.change.operation for entry in found] == [
        "project_key_create",
        "project_key_suspend",
        "project_key_unsuspend",
        "project_key_revoke",
        "admin_key_create",
        "admin_key_revoke",
        "organization_grant_check",
        "organization_revoke_check",
        "credit_grant",
        "cap_set",
        "cap_set",
        "cap_clear",
        "limit_set",
        "project_archive",
    ]
    assert {entry.actor for entry in found} == {_ALICE}
    by_operation = {entry.change.operation: entry.change for entry in found}
    assert by_operation["organization_grant_check"].before == {"checks": []}
    assert by_operation["organization_grant_check"].after == {"checks": ["kyc"]}
    assert by_operation["credit_grant"].after == {
        "available": "5",
        "grant": "5",
        "kind": "grant",
        "note": "first",
    }
    assert by_operation["cap_clear"].before == {"amount": "1", "period": "month"}
    assert by_operation["cap_clear"].after is None
    assert by_operation["limit_set"].after == {"requests_per_minute": 100, "concurrency": None}
    archived = by_operation["project_archive"]
    assert archived.before is not None
    assert archived.before["archived_at"] is None
    assert archived.after is not None
    assert archived.after["archived_at"] is not None


async def test_a_change_through_the_api_names_the_admin_key(
    gateway: Gateway, tenant: Tenant
) -> None:
    policy = await gateway.make_policy(tenant)
    path = f"/v1/organization/policies/{policy['id']}"
    body = {"revision": 1, "description": "New."}
    edited = await gateway.client.patch(path, json=body, headers=tenant.as_admin)
    assert edited.status_code == 200, edited.text
    found = await _entries(gateway, tenant, object_id=policy["id"])
    assert [entry.change.operation for entry in found] == ["policy_edit", "policy_create"]
    assert {entry.actor.kind for entry in found} == {ActorKind.API}
    assert all(entry.actor.name.startswith("admin key ") for entry in found)
    assert found[0].change.before is not None
    assert found[0].change.after is not None
    assert found[0].change.before["description"] == ""
    assert found[0].change.after["description"] == "New."
    # Unchanged fields are not recorded.
    assert set(found[0].change.after) <= {"description", "revision", "updated_at"}


async def test_a_replayed_creation_is_recorded_once(gateway: Gateway, tenant: Tenant) -> None:
    headers = {**tenant.as_admin, **idempotency_key()}
    path = f"/v1/organization/projects/{tenant.project_id}/api_keys"
    ids = set()
    for _ in range(2):
        answer = await gateway.client.post(path, json={"name": "app"}, headers=headers)
        assert answer.status_code == 200, answer.text
        ids.add(answer.json()["id"])
    (key,) = ids
    assert len(await _entries(gateway, tenant, object_id=key)) == 1


async def test_what_is_refused_or_changes_nothing_leaves_no_entry(
    gateway: Gateway, tenant: Tenant
) -> None:
    services = gateway.services
    before = await _entries(gateway, tenant)

    async def refused(error: type[Exception], change: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(error):
            await change()

    await refused(
        StateConflict, lambda: services.accounts.credit_grant(tenant.organization_id, -(10**12))
    )
    await refused(
        NotFound,
        lambda: services.organizations.organization_revoke_check(tenant.organization_id, "none"),
    )
    await refused(
        NotFound,
        lambda: services.admin_keys.admin_key_revoke(tenant.organization_id, KeyId(uuid4())),
    )
    await services.caps.cap_clear(tenant.organization_id)
    assert await _entries(gateway, tenant) == before


async def test_no_value_and_no_digest_of_a_key_is_in_the_audit(
    gateway: Gateway, tenant: Tenant
) -> None:
    shown = msgspec.json.encode(await _entries(gateway, tenant)).decode()
    for value in (tenant.admin_key, tenant.project_key):
        assert value not in shown
    fields = {
        field
        for entry in await _entries(gateway, tenant)
        for field in {**(entry.change.before or {}), **(entry.change.after or {})}
    }
    assert not fields & {"digest", "value", "secret"}


async def test_pages_meet_without_a_gap(gateway: Gateway, tenant: Tenant) -> None:
    for number in range(7):
        await gateway.services.projects.project_create(tenant.organization_id, f"p{number}")
    whole = await _entries(gateway, tenant)
    pages: list[AuditEntry] = []
    cursor: int | None = None
    while True:
        page = await gateway.services.audit.audit_list(
            organization_id=tenant.organization_id, before_id=cursor, limit=3
        )
        pages += page.entries
        cursor = page.next_before
        if cursor is None:
            break
    assert pages == whole
    assert len(whole) == 11


async def test_an_organization_sees_only_its_own_entries(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.make_recorded_tenant("Other")
    assert str(other.organization_id) not in json.dumps(
        msgspec.to_builtins(await _entries(gateway, tenant))
    )
    assert await _entries(gateway, tenant, object_id=str(other.project_id)) == []


async def test_a_part_of_the_actor_selects_entries(gateway: Gateway, tenant: Tenant) -> None:
    names = [f"{name} ({uuid4().hex})" for name in ("Ada_%", "Bob")]
    for name in names:
        with acting_as(Actor(ActorKind.CONSOLE, name)):
            await gateway.services.projects.project_create(tenant.organization_id, name)
    for text, found in (
        (names[0], names[:1]),
        ("ada_%", names[:1]),
        ("console:BOB", names[1:]),
        ("console:", names),
        # Characters of patterns have no special meaning.
        ("a%a", []),
        (names[0][:-1] + "?", []),
    ):
        entries = await _entries(gateway, tenant, actor=text)
        assert [entry.actor.name for entry in reversed(entries)] == found, text


async def test_times_bound_the_list(gateway: Gateway, tenant: Tenant) -> None:
    (newest, *_) = await _entries(gateway, tenant)
    assert await _entries(gateway, tenant, since=newest.at + 3600) == []
    assert await _entries(gateway, tenant, until=newest.at - 3600) == []
    assert newest in await _entries(gateway, tenant, since=newest.at - 1, until=newest.at + 2)


async def test_actors_of_concurrent_tasks_do_not_mix() -> None:
    async def act(name: str) -> str:
        with acting_as(Actor(ActorKind.CONSOLE, name)):
            await asyncio.sleep(0)
            return _actor.get().name

    assert [*await asyncio.gather(act("a"), act("b"))] == ["a", "b"]
    assert _actor.get() == SYSTEM


def test_of_two_states_only_what_differs_is_kept() -> None:
    before = {
        "name": "a",
        "draft": {"rule": "Long?", "mode": "monitoring"},
        "left": 1,
        "none": None,
    }
    after = {"name": "a", "draft": {"rule": "Long?", "mode": "enforcing"}, "come": 2}
    assert differing(before, after) == {"draft": {"mode": "monitoring"}, "left": 1, "none": None}
    assert differing(after, before) == {"draft": {"mode": "enforcing"}, "come": 2}
    assert differing(before, before) == {}


async def _insert_old(gateway: Gateway, organization: OrganizationId, *ages_days: int) -> None:
    async with gateway.services.database.transaction() as connection:
        await connection.execute(
            """
            INSERT INTO audit (organization_id, at, actor_kind, actor, operation, object_kind, object_id)
            SELECT %s, now() - make_interval(days => age), 'cli', 'alice', 'old', 'project', age::text
            FROM unnest(%s::integer[]) AS a (age)
            """,
            (organization, list(ages_days)),
        )


async def test_old_entries_are_deleted_in_batches(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_DELETED_AT_ONCE", 2)
    await _insert_old(gateway, tenant.organization_id, 9, 11, 12, 13, 14, 15)
    recent = len(await _entries(gateway, tenant)) - 6
    # Two processes may delete old entries at the same time.
    audits = [Audit(gateway.services.database, unix_now, retention_days=10) for _ in range(2)]
    await asyncio.gather(*(audit.delete_old() for audit in audits))
    await audits[0].delete_old()
    found = await _entries(gateway, tenant)
    assert [entry.change.object_id for entry in found[:1]] == ["9"]
    assert len(found) == recent + 1


async def test_a_clock_that_runs_ahead_deletes_nothing(gateway: Gateway, tenant: Tenant) -> None:
    await _insert_old(gateway, tenant.organization_id, 9)
    before = await _entries(gateway, tenant)
    audit = Audit(gateway.services.database, lambda: unix_now() + 10**9, retention_days=10)
    await audit.delete_old()
    assert await _entries(gateway, tenant) == before


async def test_upkeep_deletes_old_entries(gateway: Gateway, tenant: Tenant) -> None:
    days = Settings().audit.retention_days
    await _insert_old(gateway, tenant.organization_id, days - 1, days + 1)
    await gateway.services.upkeep.delete_old_audit()
    found = await _entries(gateway, tenant)
    old = [entry.change.object_id for entry in found if entry.change.operation == "old"]
    assert old == [str(days - 1)]
