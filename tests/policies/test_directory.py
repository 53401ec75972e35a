"""Tests that the directory reads the policies of several organizations together, and that its cache
is limited."""

from uuid import uuid4

import pytest

from tests.support.judged_gateway import JudgedGateway
from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.database.database import Connection
from tollkeeper.policies import directory
from tollkeeper.policies import store as policies
from tollkeeper.policies.directory import PolicyDirectory
from tollkeeper.policies.policy import Direction, Mode, PolicyVersion, Scope
from tollkeeper.policies.policy_set import ActivePolicy, PolicySet


def _policy(name: str, scope: Scope, *projects: ProjectId) -> ActivePolicy:
    return ActivePolicy(
        id=name,
        name=name,
        version=1,
        version_id=f"{name}_1",
        rule="Is it?",
        direction=Direction.BOTH,
        mode=Mode.ENFORCING,
        scope=scope,
        project_ids=frozenset(projects),
        threshold_basis_points=5000,
    )


def test_policies_of_the_project_keep_their_order_among_those_of_all() -> None:
    mine, other = ProjectId(uuid4()), ProjectId(uuid4())
    made = [
        _policy("a", Scope.PROJECTS, mine),
        _policy("b", Scope.ORGANIZATION),
        _policy("c", Scope.PROJECTS, other),
        _policy("d", Scope.UNATTACHED, mine),
        _policy("e", Scope.PROJECTS, other, mine),
        _policy("f", Scope.ORGANIZATION),
    ]
    found = PolicySet(1, {policy.id: policy for policy in made}, frozenset())
    assert [policy.id for policy in found.attached(mine)] == ["a", "b", "e", "f"]
    assert [policy.id for policy in found.attached(other)] == ["b", "c", "e", "f"]
    assert [policy.id for policy in found.attached(ProjectId(uuid4()))] == ["b", "f"]
    assert [policy.id for policy in found.applying(mine, ["d", "a"])] == ["a", "b", "e", "f", "d"]


async def test_organizations_are_read_together_and_only_if_they_published(
    judged: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[OrganizationId]] = []
    find = policies.find_published

    async def counted(
        connection: Connection, wanted: list[OrganizationId], known: dict[str, PolicyVersion]
    ) -> object:
        read.append(wanted)
        return await find(connection, wanted, known)

    monkeypatch.setattr(policies, "find_published", counted)
    others = [await judged.with_tenant() for _ in range(2)]
    published = [await one.enforce(word) for one, word in zip(others, ("x", "y"), strict=True)]
    never = (await judged.with_tenant()).scripted.tenant.organization_id
    known = PolicyDirectory(5000)
    owners = [policy.organization_id for policy in published]
    async with judged.scripted.gateway.services.database.snapshot() as connection:
        epochs = {one: await policies.read_epoch(connection, one) for one in [*owners, never]}
        assert epochs[never] == 0
        sets = await known.current(connection, epochs)
        again = await known.current(connection, epochs)
    assert [list(sets[one].active) for one in owners] == [[policy.id] for policy in published]
    assert sets[never].active == {}
    assert again == sets
    assert read == [owners]


async def test_a_change_of_one_policy_does_not_read_the_others_again(judged: JudgedGateway) -> None:
    """All tenants whose calls are admitted together wait while policies are read, and the policies of one
    tenant can have megabytes."""
    tenant = await judged.with_tenant()
    services = judged.scripted.gateway.services
    service, database = services.policies, services.database
    organization_id = tenant.scripted.tenant.organization_id
    changed, *others = [await tenant.enforce(word) for word in ("x", "y", "z")]
    known = PolicyDirectory(5000)

    async def current() -> PolicySet:
        async with database.snapshot() as connection:
            epoch = await policies.read_epoch(connection, organization_id)
            return (await known.current(connection, {organization_id: epoch}))[organization_id]

    before = await current()
    changed = await service.policy_pause(organization_id, changed.id, changed.revision)
    paused = await current()
    assert set(paused.active) == {policy.id for policy in others}
    assert set(paused.paused) == {changed.id}
    changed = await service.policy_resume(organization_id, changed.id, changed.revision)
    changes = {"rule": "Is it about w?"}
    changed = await service.policy_edit(
        organization_id, changed.id, changed.revision, name="W", description=None, changes=changes
    )
    resumed = await current()
    assert resumed.active[changed.id].name == before.active[changed.id].name
    for policy_id, policy in before.active.items():
        assert resumed.active[policy_id].rule is policy.rule, "the rule was read again"
    await service.policy_publish(organization_id, changed.id, changed.revision)
    republished = await current()
    active = republished.active[changed.id]
    assert (active.name, active.rule) == ("W", "Is it about w?")
    for other in others:
        assert republished.active[other.id].rule is before.active[other.id].rule


async def test_the_list_of_effective_policies_does_not_read_rules_again(
    judged: JudgedGateway,
) -> None:
    tenant = await judged.with_tenant()
    await tenant.publish_many(3, mode="enforcing")
    service = judged.scripted.gateway.services.policies
    ids = (tenant.scripted.tenant.organization_id, tenant.scripted.tenant.project_id)
    first, second = [await service.effective_policy_list(*ids) for _ in range(2)]
    assert len(first) == 3
    assert all(one.rule is other.rule for one, other in zip(first, second, strict=True))


async def test_the_directory_forgets_what_was_used_longest_ago(
    judged: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_POLICIES_MAX", 5)
    tenants = [await judged.with_tenant() for _ in range(3)]
    for tenant in tenants:
        await tenant.publish_many(2, mode="monitoring")
    known = PolicyDirectory(5000)
    first, second, third = (tenant.scripted.tenant.organization_id for tenant in tenants)
    async with judged.scripted.gateway.services.database.snapshot() as connection:
        for one in (first, second, first, third):
            epoch = await policies.read_epoch(connection, one)
            assert len((await known.current(connection, {one: epoch}))[one].active) == 2
    assert list(known._sets) == [first, third]
    assert known._cached_policies == 4


async def test_a_failover_that_loses_a_change_leaves_no_stale_policies(
    judged: JudgedGateway,
) -> None:
    """A process has read a change, then a failover to an asynchronous standby loses the change. The next
    change must not have the epoch of the lost change, although both begin at the same epoch."""
    tenant = await judged.with_tenant()
    services = judged.scripted.gateway.services
    service, database = services.policies, services.database
    organization_id = tenant.scripted.tenant.organization_id
    lost, kept = [await tenant.enforce(word) for word in ("x", "y")]
    known = PolicyDirectory(5000)

    async def current() -> PolicySet:
        async with database.snapshot() as connection:
            epoch = await policies.read_epoch(connection, organization_id)
            return (await known.current(connection, {organization_id: epoch}))[organization_id]

    before = await current()
    await service.policy_pause(organization_id, lost.id, lost.revision)
    assert set((await current()).active) == {kept.id}
    async with database.transaction() as connection:
        await policies.update(connection, lost)
        await connection.execute(
            "UPDATE accounts SET epoch = %s WHERE organization_id = %s",
            (before.epoch, organization_id),
        )
    await service.policy_pause(organization_id, kept.id, kept.revision)
    assert set((await current()).active) == {lost.id}
