"""Finds the caller that a presented key belongs to, and refuses keys that are not active."""

import asyncio
import hmac
import time
from uuid import UUID

from tollkeeper.domain.access import AdminCaller, Caller, KeyKind, KeyStatus, ProjectCaller
from tollkeeper.domain.errors import TollkeeperError, Unauthenticated, Unavailable
from tollkeeper.domain.keys import key_digest, key_kind
from tollkeeper.services.clock import Clock
from tollkeeper.services.tenants.key_use import KeyUse
from tollkeeper.storage import admin_keys, project_keys
from tollkeeper.storage.database import Connection, Database

_INVALID_KEY = "This API key is not valid."
_CACHED_MAX = 10_000
_CACHED_S = 30.0


class Authentication:
    def __init__(self, database: Database, key_use: KeyUse, clock: Clock) -> None:
        self._database = database
        self._key_use = key_use
        self._clock = clock
        self._cached: dict[bytes, tuple[ProjectCaller, float]] = {}
        # Keys that are being looked up.
        self._sought: dict[bytes, asyncio.Task[Caller | TollkeeperError]] = {}

    async def authenticate(self, presented: str) -> Caller:
        """Reads the key from the database each time, so that a revocation takes effect with the next
        request."""
        kind = key_kind(presented)
        if kind is None:
            raise Unauthenticated(_INVALID_KEY)
        return await self._authenticate(kind, key_digest(presented))

    async def recognise(self, presented: str) -> Caller:
        """Like `authenticate`, but caches project keys for a short time, by their whole digest. Only
        for calls that go through admission, which reads the key again under a lock."""
        digest = key_digest(presented)
        now = time.monotonic()
        caller, until = self._cached.get(digest, (None, 0.0))
        if caller is not None and now < until:
            self._key_use.note(KeyKind.PROJECT, caller.key_id, self._clock())
            return caller
        sought = self._sought.get(digest)
        if sought is None:
            # Requests of the same key that come meanwhile wait for this one. It is not cancelled
            # with the request that was the first.
            sought = asyncio.create_task(self._seek(presented, digest))
            self._sought[digest] = sought
            sought.add_done_callback(lambda _: self._sought.pop(digest))
        found = await asyncio.shield(sought)
        if isinstance(found, TollkeeperError):
            raise type(found)(found.message, retry_after_s=found.retry_after_s)
        return found

    async def _seek(self, presented: str, digest: bytes) -> Caller | TollkeeperError:
        """Returns a refusal, because every request that waits for it raises one of its own."""
        try:
            caller = await self.authenticate(presented)
        except (Unauthenticated, Unavailable) as exc:
            return exc
        if isinstance(caller, ProjectCaller):
            if len(self._cached) >= _CACHED_MAX:
                self._cached.clear()
            self._cached[digest] = (caller, time.monotonic() + _CACHED_S)
        return caller

    async def _authenticate(self, kind: KeyKind, digest: bytes) -> Caller:
        async with self._database.reading() as connection:
            if kind is KeyKind.PROJECT:
                caller: Caller = await self._project_caller(connection, digest)
            else:
                caller = await self._admin_caller(connection, digest)
        self._key_use.note(kind, caller.key_id, self._clock())
        return caller

    async def _project_caller(self, connection: Connection, digest: bytes) -> ProjectCaller:
        stored = await project_keys.find_by_digest(connection, digest)
        if stored is None or not hmac.compare_digest(stored.digest, digest):
            raise Unauthenticated(_INVALID_KEY)
        _require_active(stored.key.status(self._clock()), stored.key.id)
        if stored.project_archived:
            raise Unauthenticated("The project of this API key is archived.")
        return ProjectCaller(
            organization_id=stored.key.organization_id,
            project_id=stored.key.project_id,
            key_id=stored.key.id,
            permissions=frozenset(stored.key.permissions),
        )

    async def _admin_caller(self, connection: Connection, digest: bytes) -> AdminCaller:
        stored = await admin_keys.find_by_digest(connection, digest)
        if stored is None or not hmac.compare_digest(stored.digest, digest):
            raise Unauthenticated(_INVALID_KEY)
        _require_active(stored.key.status(self._clock()), stored.key.id)
        return AdminCaller(
            organization_id=stored.key.organization_id,
            key_id=stored.key.id,
            permissions=frozenset(stored.key.permissions),
        )


def _require_active(status: KeyStatus, key_id: UUID) -> None:
    if status is not KeyStatus.ACTIVE:
        raise Unauthenticated(f"The API key {key_id} is {status}.")
