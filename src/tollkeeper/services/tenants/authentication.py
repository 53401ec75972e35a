"""Finds the caller that a presented key belongs to, and refuses keys that are not active."""

import hmac
import time
from uuid import UUID

from tollkeeper.domain.access import AdminCaller, Caller, KeyKind, KeyStatus, ProjectCaller
from tollkeeper.domain.errors import Unauthenticated
from tollkeeper.domain.keys import key_digest, key_kind
from tollkeeper.services.clock import Clock
from tollkeeper.services.tenants.key_lookups import KeyLookups
from tollkeeper.services.tenants.key_use import KeyUse
from tollkeeper.storage import admin_keys, project_keys
from tollkeeper.storage.database import Database

_INVALID_KEY = "This API key is not valid."
_CACHED_MAX = 10_000
_CACHED_S = 30.0
# For so much longer a cached key is good enough to refuse its calls.
_STALE_S = 30.0


class Authentication:
    def __init__(self, database: Database, key_use: KeyUse, clock: Clock) -> None:
        self._key_use = key_use
        self._clock = clock
        self._project_keys = KeyLookups(database, project_keys.find_by_digests)
        self._admin_keys = KeyLookups(database, admin_keys.find_by_digests)
        # The oldest first.
        self._cached: dict[bytes, tuple[ProjectCaller, float]] = {}

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
        cached = self._cached_caller(digest, time.monotonic())
        if cached is not None:
            return cached
        authenticated = await self.authenticate(presented)
        if isinstance(authenticated, ProjectCaller):
            self._cached.pop(digest, None)
            if len(self._cached) >= _CACHED_MAX:
                del self._cached[next(iter(self._cached))]
            self._cached[digest] = (authenticated, time.monotonic() + _CACHED_S)
        return authenticated

    def recognise_to_refuse(self, presented: str) -> ProjectCaller | None:
        """Like `recognise`, for calls that are refused for lack of room: it does not wait, and takes a
        key that was cached a little too long ago. None where the key is not in the cache. Without
        this, all calls of a key would wait for the database whenever it has to be read again, just
        when the process has too much to do."""
        return self._cached_caller(key_digest(presented), time.monotonic() - _STALE_S)

    def _cached_caller(self, digest: bytes, now: float) -> ProjectCaller | None:
        caller, until = self._cached.get(digest, (None, 0.0))
        if caller is None or now >= until:
            return None
        self._key_use.note(KeyKind.PROJECT, caller, self._clock())
        return caller

    async def _authenticate(self, kind: KeyKind, digest: bytes) -> Caller:
        if kind is KeyKind.PROJECT:
            caller: Caller = await self._project_caller(digest)
        else:
            caller = await self._admin_caller(digest)
        self._key_use.note(kind, caller, self._clock())
        return caller

    async def _project_caller(self, digest: bytes) -> ProjectCaller:
        stored = await self._project_keys.find(digest)
        if stored is None or not hmac.compare_digest(stored.digest, digest):
            raise Unauthenticated(_INVALID_KEY)
        _require_active(stored.status(self._clock()), stored.id)
        if stored.project_archived:
            raise Unauthenticated("The project of this API key is archived.")
        return ProjectCaller(
            organization_id=stored.organization_id,
            project_id=stored.project_id,
            key_id=stored.id,
            permissions=frozenset(stored.permissions),
        )

    async def _admin_caller(self, digest: bytes) -> AdminCaller:
        stored = await self._admin_keys.find(digest)
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
