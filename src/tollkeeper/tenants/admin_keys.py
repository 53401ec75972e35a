"""Manages admin keys. Only operators create and rename them; clients also list and revoke them."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import uuid4

from tollkeeper.core.access import ADMIN_PERMISSIONS, KeyId, KeyKind, OrganizationId
from tollkeeper.core.errors import NotFound
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.database import Connection, Database
from tollkeeper.tenants import admin_keys_store as admin_keys
from tollkeeper.tenants import names_store as names
from tollkeeper.tenants import organizations_store as organizations
from tollkeeper.tenants.audit.service import record_change
from tollkeeper.tenants.keys import mint_key
from tollkeeper.tenants.names import checked_name, rename, require_unused_name
from tollkeeper.tenants.organization import AdminKey
from tollkeeper.tenants.project_keys import checked_permissions, expiry
from tollkeeper.tenants.projects import lock_active_organization


@dataclass(frozen=True, slots=True)
class AdminKeyPage:
    keys: list[AdminKey]
    has_more: bool


class AdminKeys:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def admin_key_create(
        self,
        organization_id: OrganizationId,
        name: str,
        permissions: Iterable[str],
        expires_in_s: int | None,
    ) -> tuple[AdminKey, str]:
        """Only a digest is stored, so the value can be shown only once."""
        minted = mint_key(KeyKind.ADMIN)
        now = self._clock()
        key = AdminKey(
            id=KeyId(uuid4()),
            organization_id=organization_id,
            name=checked_name(name),
            redacted_value=minted.redacted_value,
            permissions=checked_permissions(permissions, ADMIN_PERMISSIONS),
            created_at=now,
            last_used_at=None,
            expires_at=expiry(now, expires_in_s),
            revoked_at=None,
        )
        async with self._database.transaction() as connection:
            await lock_active_organization(connection, organization_id)
            await require_unused_name(
                connection, names.ADMIN_KEYS, key.name, key.id, organization_id
            )
            await admin_keys.insert(connection, key, minted.digest)
            await record_change(
                connection, organization_id, "admin_key_create", "admin_key", key.id, after=key
            )
        return key, minted.value

    async def admin_key_list(
        self,
        organization_id: OrganizationId,
        *,
        after: KeyId | None,
        limit: int,
        descending: bool = False,
    ) -> AdminKeyPage:
        async with self._database.autocommit(organization_id) as connection:
            if (
                after is not None
                and await admin_keys.find(connection, organization_id, after) is None
            ):
                raise NotFound("There is no such Admin API key.", param="after")
            # One more, to see whether there's a next page.
            keys = await admin_keys.find_page(
                connection, organization_id, after=after, limit=limit + 1, descending=descending
            )
        return AdminKeyPage(keys=keys[:limit], has_more=len(keys) > limit)

    async def admin_key_show(self, key_id: KeyId) -> AdminKey:
        async with self._database.autocommit() as connection:
            return await _find(connection, key_id)

    async def admin_key_rename(self, key_id: KeyId, name: str) -> AdminKey:
        name = checked_name(name)
        async with self._database.transaction() as connection:
            found = await _find(connection, key_id)
            await organizations.lock(connection, found.organization_id)
            # It may have changed before the lock.
            found = await _find(connection, key_id)
            return await rename(connection, names.ADMIN_KEYS, found, name, found.organization_id)

    async def admin_key_revoke(self, organization_id: OrganizationId, key_id: KeyId) -> KeyId:
        async with self._database.transaction(organization_id) as connection:
            before = await admin_keys.find_anywhere(connection, key_id)
            if not await admin_keys.revoke(connection, organization_id, key_id, self._clock()):
                raise NotFound("There is no such Admin API key.", param="api_key_id")
            await record_change(
                connection,
                organization_id,
                "admin_key_revoke",
                "admin_key",
                key_id,
                before=before,
                after=await admin_keys.find_anywhere(connection, key_id),
            )
        return key_id


async def _find(connection: Connection, key_id: KeyId) -> AdminKey:
    key = await admin_keys.find_anywhere(connection, key_id)
    if key is None:
        raise NotFound(f"There is no admin key {key_id}.")
    return key
