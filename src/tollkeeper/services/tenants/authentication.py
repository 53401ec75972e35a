"""From a presented key to the caller it stands for."""

import hmac
import time
from uuid import UUID

from tollkeeper.domain.access import AdminCaller, Caller, KeyKind, KeyStatus, ProjectCaller
from tollkeeper.domain.errors import Unauthenticated
from tollkeeper.domain.keys import key_digest, key_kind
from tollkeeper.services.clock import Clock
from tollkeeper.services.tenants.key_use import KeyUse
from tollkeeper.storage import admin_keys, project_keys
from tollkeeper.storage.database import Connection, Database

_UNKNOWN = "This API key is not valid."
_REMEMBERED_MAX = 10_000
_REMEMBERED_S = 30.0


class Authentication:
    def __init__(self, database: Database, key_use: KeyUse, clock: Clock) -> None:
        self._database = database
        self._key_use = key_use
        self._clock = clock
        self._remembered: dict[bytes, tuple[ProjectCaller, float]] = {}

    async def authenticate(self, presented: str) -> Caller:
        """Reads the key on every call: a revocation is seen by the very next request."""
        kind = key_kind(presented)
        if kind is None:
            raise Unauthenticated(_UNKNOWN)
        return await self._authenticate(kind, key_digest(presented))

    async def recognise(self, presented: str) -> Caller:
        """Like `authenticate`, but may remember a key for a while. Only for calls that admission
        decides on: it reads the key again, under lock. Remembered by the key's whole digest."""
        digest = key_digest(presented)
        now = time.monotonic()
        caller, until = self._remembered.get(digest, (None, 0.0))
        if caller is not None and now < until:
            self._key_use.note(KeyKind.PROJECT, caller.key_id, self._clock())
            return caller
        found = await self.authenticate(presented)
        if isinstance(found, ProjectCaller):
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[digest] = (found, now + _REMEMBERED_S)
        return found

    async def _authenticate(self, kind: KeyKind, digest: bytes) -> Caller:
        async with self._database.reading() as connection:
            if kind is KeyKind.PROJECT:
                caller: Caller = await self._customer(connection, digest)
            else:
                caller = await self._admin(connection, digest)
        self._key_use.note(kind, caller.key_id, self._clock())
        return caller

    async def _customer(self, connection: Connection, digest: bytes) -> ProjectCaller:
        found = await project_keys.find_by_digest(connection, digest)
        if found is None or not hmac.compare_digest(found.digest, digest):
            raise Unauthenticated(_UNKNOWN)
        _require_active(found.key.status(self._clock()), found.key.id)
        if found.project_archived:
            raise Unauthenticated("The project of this API key is archived.")
        return ProjectCaller(
            organization_id=found.key.organization_id,
            project_id=found.key.project_id,
            key_id=found.key.id,
            permissions=frozenset(found.key.permissions),
        )

    async def _admin(self, connection: Connection, digest: bytes) -> AdminCaller:
        found = await admin_keys.find_by_digest(connection, digest)
        if found is None or not hmac.compare_digest(found.digest, digest):
            raise Unauthenticated(_UNKNOWN)
        _require_active(found.key.status(self._clock()), found.key.id)
        return AdminCaller(
            organization_id=found.key.organization_id,
            key_id=found.key.id,
            permissions=frozenset(found.key.permissions),
        )


def _require_active(status: KeyStatus, key_id: UUID) -> None:
    if status is not KeyStatus.ACTIVE:
        raise Unauthenticated(f"The API key {key_id} is {status}.")
