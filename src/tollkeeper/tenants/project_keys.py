"""Manages project keys. Clients, operators and an organization's console users create them; only
operators do the rest."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import count
from uuid import UUID, uuid4

import msgspec

from tollkeeper.core.access import (
    PROJECT_KEY_PERMISSIONS,
    KeyId,
    KeyKind,
    KeyStatus,
    OrganizationId,
    Permission,
    ProjectId,
)
from tollkeeper.core.allowed_models import checked_entries
from tollkeeper.core.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.account_locks import lock_account_rows
from tollkeeper.database.database import Connection, Database
from tollkeeper.tenants import names_store as names
from tollkeeper.tenants import project_keys_store as project_keys
from tollkeeper.tenants import projects_store as projects
from tollkeeper.tenants.audit.service import record_change
from tollkeeper.tenants.idempotency import Idempotency, IdempotentRequest
from tollkeeper.tenants.keys import MintedKey, derived_key, mint_key
from tollkeeper.tenants.names import checked_name, rename, require_unused_name
from tollkeeper.tenants.organization import Project, ProjectKey

OPERATION_CREATE = "project_key_create"
# The key with which the console's playground calls as a project.
_PLAYGROUND = "console playground"
# Of one project. Revoked and expired ones don't count.
KEYS_MAX = 10_000
# A hundred years, so the database can store the time of expiry.
_EXPIRES_IN_S_MAX = 100 * 366 * 86400


@dataclass(frozen=True, slots=True)
class Rotation:
    new: ProjectKey
    # Shown only once, because only a digest is stored.
    value: str
    # Valid until its `expires_at`.
    old: ProjectKey


class ProjectKeys:
    def __init__(
        self,
        database: Database,
        idempotency: Idempotency,
        clock: Clock,
        default_permissions: Iterable[str],
    ) -> None:
        self._database = database
        self._idempotency = idempotency
        self._clock = clock
        self._default_permissions = tuple(default_permissions)

    async def project_key_create(
        self, project_id: ProjectId, name: str, request: IdempotentRequest
    ) -> tuple[ProjectKey, str | None]:
        """For a client. A repeated Idempotency-Key returns the same key, after a day without its
        value."""
        minted = mint_key(KeyKind.PROJECT)
        key_id = KeyId(uuid4())
        async with self._database.transaction(request.organization_id) as connection:
            replay = await self._idempotency.claim(connection, request, str(key_id))
            if replay is not None:
                first_key = await project_keys.find(
                    connection, request.organization_id, KeyId(UUID(replay.resource_id))
                )
                assert first_key is not None, "a key is never deleted"
                return first_key, replay.secret
            key = await self._insert(
                connection,
                minted,
                key_id=key_id,
                organization_id=request.organization_id,
                project_id=project_id,
                name=name,
            )
            await self._idempotency.keep_secret(connection, request, minted.value)
        return key, minted.value

    async def project_key_create_by_operator(
        self,
        project_id: ProjectId,
        name: str,
        permissions: Iterable[str] | None,
        expires_in_s: int | None,
        *,
        within: Connection | None = None,
    ) -> tuple[ProjectKey, str]:
        """For a command or the console. The project's other usable keys must have other names. Clients'
        keys may have equal names, and so may the two of a rotation. `within` is as in
        `Database.transaction`."""
        minted = mint_key(KeyKind.PROJECT)
        key_id, name = KeyId(uuid4()), checked_name(name)
        async with self._database.transaction(within=within) as connection:
            project = await projects.find_anywhere(connection, project_id)
            if project is None:
                raise NotFound(f"There is no project {project_id}.")
            await projects.find_and_lock(connection, project.organization_id, project_id)
            await require_unused_name(connection, names.PROJECT_KEYS, name, key_id, project_id)
            key = await self._insert(
                connection,
                minted,
                key_id=key_id,
                organization_id=project.organization_id,
                project_id=project_id,
                name=name,
                permissions=permissions,
                expires_in_s=expires_in_s,
            )
        return key, minted.value

    async def project_key_of_playground(
        self, project_id: ProjectId, lifetime_s: int, seed: Callable[[int], bytes]
    ) -> str:
        """Returns the value of the key with which the console's playground calls as the project. It's the
        same key for all calls, because a key per call would fill the lists of keys. Between calls,
        it expires. `seed` gives the secret bytes of the project's next key for each number: the key
        after one that was revoked has the next number."""
        project = await self._project(project_id)
        for number in count():
            minted = derived_key(KeyKind.PROJECT, seed(number))
            key = await self._playground_key(project, minted, lifetime_s)
            if key.revoked_at is not None:
                continue
            now = self._clock()
            # Gateways remember a key for some seconds, so it is prolonged long before it expires.
            if key.expires_at is not None and key.expires_at < now + lifetime_s // 2:
                await self._prolong(key, now + lifetime_s)
            return minted.value
        raise AssertionError("the numbers have no end")

    async def _project(self, project_id: ProjectId) -> Project:
        async with self._database.autocommit() as connection:
            project = await projects.find_anywhere(connection, project_id)
        if project is None:
            raise NotFound(f"There is no project {project_id}.")
        if project.archived_at is not None:
            raise StateConflict("The project is archived.", param="project_id")
        return project

    async def _playground_key(
        self, project: Project, minted: MintedKey, lifetime_s: int
    ) -> ProjectKey:
        async with self._database.transaction() as connection:
            # Two first calls at the same time make one key.
            await projects.find_and_lock(connection, project.organization_id, project.id)
            key = await project_keys.find_by_digest(
                connection, project.organization_id, minted.digest
            )
            return key or await self._insert(
                connection,
                minted,
                key_id=KeyId(uuid4()),
                organization_id=project.organization_id,
                project_id=project.id,
                name=_PLAYGROUND,
                permissions=[Permission.INFERENCE_WRITE],
                expires_in_s=lifetime_s,
            )

    async def _prolong(self, key: ProjectKey, expires_at: int) -> None:
        async def prolong(connection: Connection, key: ProjectKey) -> bool:
            # Another call may have done so already.
            await project_keys.prolong(connection, key, expires_at)
            return True

        await self._change_key("project_key_prolong", key.id, prolong, "")

    async def project_key_list(self, project_id: ProjectId) -> list[ProjectKey]:
        async with self._database.autocommit() as connection:
            project = await projects.find_anywhere(connection, project_id)
            if project is None:
                raise NotFound(f"There is no project {project_id}.")
            return await project_keys.find_of_project(
                connection, project.organization_id, project_id
            )

    async def project_key_list_of_organization(
        self, organization_id: OrganizationId, *, limit: int
    ) -> list[ProjectKey]:
        """Newest first."""
        async with self._database.autocommit() as connection:
            return await project_keys.find_of_organization(connection, organization_id, limit=limit)

    async def project_key_show(self, key_id: KeyId) -> ProjectKey:
        async with self._database.autocommit() as connection:
            key = await project_keys.find_anywhere(connection, key_id)
        if key is None:
            raise NotFound(f"There is no project key {key_id}.")
        return key

    async def project_key_rename(self, key_id: KeyId, name: str) -> ProjectKey:
        name = checked_name(name)
        async with self._database.transaction() as connection:
            key = await _find(connection, key_id)
            await projects.find_and_lock(connection, key.organization_id, key.project_id)
            # It may have changed before the lock.
            key = await _find(connection, key_id)
            return await rename(connection, names.PROJECT_KEYS, key, name, key.project_id)

    async def project_key_revoke(self, key_id: KeyId) -> ProjectKey:
        async def revoke(connection: Connection, key: ProjectKey) -> bool:
            return await project_keys.revoke(connection, key, self._clock())

        return await self._change_key(
            "project_key_revoke", key_id, revoke, "The key is revoked already."
        )

    async def project_key_suspend(self, key_id: KeyId) -> ProjectKey:
        async def suspend(connection: Connection, key: ProjectKey) -> bool:
            return await project_keys.suspend(connection, key, self._clock())

        return await self._change_key(
            "project_key_suspend", key_id, suspend, "Only a key that is in use can be suspended."
        )

    async def project_key_unsuspend(self, key_id: KeyId) -> ProjectKey:
        return await self._change_key(
            "project_key_unsuspend",
            key_id,
            project_keys.unsuspend,
            "Only a suspended key can be unsuspended.",
        )

    async def project_key_allow_models(self, key_id: KeyId, models: Iterable[str]) -> ProjectKey:
        """The project must allow a call's model too. An empty list means all of the project's."""
        entries = checked_entries(models)

        async def allow(connection: Connection, key: ProjectKey) -> bool:
            return await project_keys.write_models(connection, key, entries)

        return await self._change_key(
            "project_key_allow_models", key_id, allow, "The key is revoked."
        )

    async def project_key_rotate(self, key_id: KeyId, grace_s: int) -> "Rotation":
        """The new key has the same name, permissions, models and lifetime, and the old one stays
        valid for the grace period. A key can be rotated only once."""
        if not 0 <= grace_s <= _EXPIRES_IN_S_MAX:
            raise InvalidRequest("The grace period must be 0 s or more.", param="grace")
        minted = mint_key(KeyKind.PROJECT)
        now = self._clock()
        async with self._database.transaction() as connection:
            old = await _find(connection, key_id)
            # `_change_key` says why. The key may have changed before the lock, so read it again.
            await lock_account_rows(connection, old.organization_id)
            old = await _find(connection, key_id)
            status = old.status(now)
            if status is not KeyStatus.ACTIVE:
                raise StateConflict(f"Only an active key can be rotated. This key is {status}.")
            lifetime = None if old.expires_at is None else old.expires_at - old.created_at
            new = await self._insert(
                connection,
                minted,
                key_id=KeyId(uuid4()),
                organization_id=old.organization_id,
                project_id=old.project_id,
                name=old.name,
                permissions=old.permissions,
                expires_in_s=lifetime,
                models=old.models,
                is_replacement=True,
            )
            if not await project_keys.replace(connection, old, new.id, now + grace_s):
                raise StateConflict("The key was rotated already.")
            expiring = await _find(connection, key_id)
            await record_change(
                connection,
                old.organization_id,
                "project_key_rotate",
                "project_key",
                key_id,
                before=old,
                after={**msgspec.to_builtins(expiring), "replaced_by": str(new.id)},
            )
        return Rotation(new, minted.value, expiring)

    async def _insert(
        self,
        connection: Connection,
        minted: MintedKey,
        *,
        key_id: KeyId,
        organization_id: OrganizationId,
        project_id: ProjectId,
        name: str,
        permissions: Iterable[str] | None = None,
        expires_in_s: int | None = None,
        models: tuple[str, ...] = (),
        is_replacement: bool = False,
    ) -> ProjectKey:
        # So the project can't be archived meanwhile, and concurrent creations can't exceed the
        # limit.
        project = await projects.find_and_lock(connection, organization_id, project_id)
        if project is None:
            raise NotFound("There is no such project.", param="project_id")
        if project.archived_at is not None:
            raise StateConflict("The project is archived.", param="project_id")
        requested = self._default_permissions if permissions is None else permissions
        now = self._clock()
        if not is_replacement:
            count = await project_keys.count_usable(connection, organization_id, project_id, now)
            if count >= KEYS_MAX:
                raise StateConflict(f"The project has {KEYS_MAX} keys, which is the maximum.")
        key = ProjectKey(
            id=key_id,
            organization_id=organization_id,
            project_id=project_id,
            project_name=project.name,
            name=name,
            redacted_value=minted.redacted_value,
            permissions=checked_permissions(requested, PROJECT_KEY_PERMISSIONS),
            created_at=now,
            last_used_at=None,
            expires_at=expiry(now, expires_in_s),
            suspended_at=None,
            revoked_at=None,
            models=models,
        )
        await project_keys.insert(connection, key, minted.digest)
        await record_change(
            connection, organization_id, OPERATION_CREATE, "project_key", key.id, after=key
        )
        return key

    async def _change_key(
        self,
        operation: str,
        key_id: KeyId,
        change: Callable[[Connection, ProjectKey], Awaitable[bool]],
        refusal: str,
    ) -> ProjectKey:
        async with self._database.transaction() as connection:
            key = await _find(connection, key_id)
            # Admission takes this too. Every admission that has read the old state ends before the
            # key changes, and every later one reads the new state.
            await lock_account_rows(connection, key.organization_id)
            if not await change(connection, key):
                raise StateConflict(refusal)
            changed = await project_keys.find_anywhere(connection, key_id)
            assert changed is not None
            await record_change(
                connection,
                key.organization_id,
                operation,
                "project_key",
                key_id,
                before=key,
                after=changed,
            )
        return changed


async def _find(connection: Connection, key_id: KeyId) -> ProjectKey:
    key = await project_keys.find_anywhere(connection, key_id)
    if key is None:
        raise NotFound(f"There is no project key {key_id}.")
    return key


def checked_permissions(requested: Iterable[str], allowed: frozenset[str]) -> tuple[str, ...]:
    permissions = tuple(sorted(set(requested)))
    for permission in permissions:
        if permission not in allowed:
            choices = ", ".join(sorted(allowed))
            raise InvalidRequest(
                f"{permission!r} is not a permission of this kind of key. Allowed are: {choices}.",
                param="permissions",
            )
    return permissions


def expiry(now: int, expires_in_s: int | None) -> int | None:
    if expires_in_s is None:
        return None
    if not 1 <= expires_in_s <= _EXPIRES_IN_S_MAX:
        raise InvalidRequest(
            f"A key expires in 1 to {_EXPIRES_IN_S_MAX} seconds.", param="expires_in"
        )
    return now + expires_in_s
