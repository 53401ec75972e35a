"""Manages policies, and finds those that apply to a call. `checks` applies them."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.errors import NotFound, StateConflict
from tollkeeper.core.inference import Call
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.database import Connection, Database
from tollkeeper.policies import store as policies
from tollkeeper.policies.directory import PolicyDirectory
from tollkeeper.policies.policy import (
    Policy,
    PolicyState,
    PolicyVersion,
    Rule,
    check_revision,
    check_rule,
    each_project_once,
    edited,
    paused,
    published,
    resumed,
)
from tollkeeper.policies.policy_set import ActivePolicy, PolicySet
from tollkeeper.tenants import organizations_store as organizations
from tollkeeper.tenants import projects_store as projects
from tollkeeper.tenants.audit.service import record_change
from tollkeeper.tenants.idempotency import Idempotency, IdempotentRequest

OPERATION_CREATE = "policy_create"
VERSIONS_SHOWN_MAX = 100
# Including drafts.
POLICIES_MAX = 1000


class Policies:
    def __init__(
        self,
        database: Database,
        idempotency: Idempotency,
        clock: Clock,
        directory: PolicyDirectory,
    ) -> None:
        self._database = database
        self._directory = directory
        self._idempotency = idempotency
        self._clock = clock

    async def policy_create(
        self, name: str, description: str, draft: Rule, request: IdempotentRequest
    ) -> Policy:
        check_rule(draft)
        now = self._clock()
        policy = Policy(
            id=f"pol_{uuid4().hex}",
            organization_id=request.organization_id,
            name=name,
            description=description,
            state=PolicyState.DRAFT,
            revision=1,
            created_at=now,
            updated_at=now,
            draft=each_project_once(draft),
            base_version=0,
            published=None,
        )
        async with self._database.transaction(request.organization_id) as connection:
            replay = await self._idempotency.claim(connection, request, policy.id)
            if replay is not None:
                return await _find(connection, request.organization_id, replay.resource_id)
            await _require_own_projects(connection, request.organization_id, draft.project_ids)
            await self._require_below_limit(connection, request.organization_id)
            await policies.insert(connection, policy)
            await _record_policy_change(connection, OPERATION_CREATE, None, policy)
        return policy

    async def policy_show(self, organization_id: OrganizationId, policy_id: str) -> Policy:
        async with self._database.autocommit(organization_id) as connection:
            return await _find(connection, organization_id, policy_id)

    async def policy_list(self, organization_id: OrganizationId) -> list[Policy]:
        async with self._database.autocommit() as connection:
            if await organizations.find(connection, organization_id) is None:
                raise NotFound(f"There is no organization {organization_id}.")
            return await policies.find_all(connection, organization_id)

    async def policy_versions(
        self, organization_id: OrganizationId, policy_id: str
    ) -> list[PolicyVersion]:
        """Newest first, at most VERSIONS_SHOWN_MAX."""
        async with self._database.autocommit() as connection:
            await _find(connection, organization_id, policy_id)
            return await policies.find_versions(
                connection, organization_id, policy_id, limit=VERSIONS_SHOWN_MAX
            )

    async def policy_edit(
        self,
        organization_id: OrganizationId,
        policy_id: str,
        revision: int,
        *,
        name: str | None,
        description: str | None,
        changes: dict[str, Any],
    ) -> Policy:
        """`changes` has only the rule fields that the client sent."""

        def edit(policy: Policy) -> Policy:
            return edited(
                policy, now=self._clock(), name=name, description=description, changes=changes
            )

        async with self._database.transaction(organization_id) as connection:
            current = await _find_and_lock(connection, organization_id, policy_id, revision)
            await _require_own_projects(connection, organization_id, changes.get("project_ids", ()))
            policy = edit(current)
            await policies.update(connection, policy)
            await _record_policy_change(connection, "policy_edit", current, policy)
        return policy

    async def policy_pause(
        self, organization_id: OrganizationId, policy_id: str, revision: int
    ) -> Policy:
        return await self._change_state(
            "policy_pause",
            organization_id,
            policy_id,
            revision,
            lambda policy: paused(policy, now=self._clock()),
        )

    async def policy_resume(
        self, organization_id: OrganizationId, policy_id: str, revision: int
    ) -> Policy:
        return await self._change_state(
            "policy_resume",
            organization_id,
            policy_id,
            revision,
            lambda policy: resumed(policy, now=self._clock()),
        )

    async def policy_publish(
        self, organization_id: OrganizationId, policy_id: str, revision: int
    ) -> Policy:
        async with self._database.transaction() as connection:
            current = await _find_and_lock(connection, organization_id, policy_id, revision)
            policy = published(current, version_id=f"polv_{uuid4().hex}", now=self._clock())
            await policies.insert_version(connection, policy)
            await policies.update(connection, policy)
            await policies.increment_epoch(connection, organization_id)
            await _record_policy_change(connection, "policy_publish", current, policy)
        return policy

    async def applying(self, call: Call) -> tuple[ActivePolicy, ...]:
        """Raises NotFound for an unpublished policy. Preliminary: admission reads the policies
        again."""
        async with self._database.snapshot(call.organization_id) as connection:
            current = await self._current(connection, call.organization_id)
        return current.applying(call.project_id, call.policy_ids)

    async def policy_organization(self, policy_id: str) -> OrganizationId:
        """For operators' commands, which only get the policy's id."""
        async with self._database.autocommit() as connection:
            organization_id = await policies.find_organization(connection, policy_id)
        if organization_id is None:
            raise NotFound(f"There is no policy {policy_id}.")
        return organization_id

    async def effective_policy_list(
        self, organization_id: OrganizationId, project_id: ProjectId
    ) -> list[ActivePolicy]:
        """Published and not paused."""
        async with self._database.snapshot(organization_id) as connection:
            if await projects.find(connection, organization_id, project_id) is None:
                raise NotFound("There is no such project.", param="project_id")
            current = await self._current(connection, organization_id)
        return current.attached(project_id)

    async def _current(self, connection: Connection, organization_id: OrganizationId) -> PolicySet:
        """Call this in a snapshot."""
        epoch = await policies.read_epoch(connection, organization_id)
        sets = await self._directory.current(connection, {organization_id: epoch})
        return sets[organization_id]

    async def _require_below_limit(
        self, connection: Connection, organization_id: OrganizationId
    ) -> None:
        # So concurrent creations can't exceed the limit.
        await organizations.lock(connection, organization_id)
        if await policies.count(connection, organization_id) >= POLICIES_MAX:
            raise StateConflict(
                f"The organization has {POLICIES_MAX} policies, which is the maximum."
            )

    async def _change_state(
        self,
        operation: str,
        organization_id: OrganizationId,
        policy_id: str,
        revision: int,
        change: Callable[[Policy], Policy],
    ) -> Policy:
        async with self._database.transaction(organization_id) as connection:
            current = await _find_and_lock(connection, organization_id, policy_id, revision)
            policy = change(current)
            await policies.update(connection, policy)
            await policies.increment_epoch(connection, organization_id)
            await _record_policy_change(connection, operation, current, policy)
        return policy


async def _record_policy_change(
    connection: Connection, operation: str, before: Policy | None, after: Policy
) -> None:
    await record_change(
        connection,
        after.organization_id,
        operation,
        "policy",
        after.id,
        before=before,
        after=after,
        only_differing=True,
    )


async def _find(connection: Connection, organization_id: OrganizationId, policy_id: str) -> Policy:
    policy = await policies.find(connection, organization_id, policy_id)
    if policy is None:
        raise NotFound("There is no such policy.", param="policy_id")
    return policy


async def _find_and_lock(
    connection: Connection, organization_id: OrganizationId, policy_id: str, revision: int
) -> Policy:
    policy = await policies.find_and_lock(connection, organization_id, policy_id)
    if policy is None:
        raise NotFound("There is no such policy.", param="policy_id")
    check_revision(policy, revision)
    return policy


async def _require_own_projects(
    connection: Connection, organization_id: OrganizationId, project_ids: Sequence[ProjectId]
) -> None:
    if not project_ids:
        return
    unknown = await projects.unknown_ids(connection, organization_id, project_ids)
    if unknown:
        position = list(project_ids).index(unknown[0])
        raise NotFound(
            f"{unknown[0]} is not a project of the organization.", param=f"project_ids[{position}]"
        )
