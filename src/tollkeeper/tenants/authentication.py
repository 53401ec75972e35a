"""Finds the caller of an API key, and rejects keys that aren't active."""

import hmac
import time
from dataclasses import dataclass
from uuid import UUID

from tollkeeper.core.access import AdminCaller, Caller, KeyKind, KeyStatus, ProjectCaller
from tollkeeper.core.errors import Unauthenticated
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.database import Database
from tollkeeper.tenants import admin_keys_store as admin_keys
from tollkeeper.tenants import project_keys_store as project_keys
from tollkeeper.tenants.key_lookups import KeyLookups
from tollkeeper.tenants.key_use import KeyUse
from tollkeeper.tenants.keys import key_digest, key_kind

_INVALID_KEY = "This API key is not valid."
_CACHED_MAX = 10_000
_CACHED_S = 30.0
# For this much longer, a cached key may only reject calls.
_STALE_S = 30.0


@dataclass(slots=True, eq=False)
class CachedKey:
    caller: ProjectCaller
    # Of the monotonic clock. Until `checked_until`, this needn't be looked up again.
    fresh_until: float
    checked_until: float = 0.0
    # Otherwise it may only reject a call while the process is overloaded. Without stale entries,
    # calls would wait for the database when their key's entry expires, even in an overload.
    is_fresh: bool = True
    # In Unix seconds.
    use_recorded_at: int = 0


class Authentication:
    def __init__(self, database: Database, key_use: KeyUse, clock: Clock) -> None:
        self._key_use = key_use
        self._clock = clock
        self._project_keys = KeyLookups(database, project_keys.find_by_digests)
        self._admin_keys = KeyLookups(database, admin_keys.find_by_digests)
        # By digest, oldest first.
        self._cached: dict[bytes, CachedKey] = {}

    async def authenticate(self, presented_key: str) -> Caller:
        """Reads the key each time, so a revocation takes effect with the next request."""
        kind = key_kind(presented_key)
        if kind is None:
            raise Unauthenticated(_INVALID_KEY)
        return await self._authenticate(kind, key_digest(presented_key))

    async def authenticate_and_cache(self, presented_key: str) -> Caller:
        """Also caches project keys for `cached`. A cached key may be revoked meanwhile, so this is
        only for inference calls: their admission reads the key again, under a lock."""
        authenticated = await self.authenticate(presented_key)
        if isinstance(authenticated, ProjectCaller):
            digest = key_digest(presented_key)
            self._cached.pop(digest, None)
            if len(self._cached) >= _CACHED_MAX:
                del self._cached[next(iter(self._cached))]
            self._cached[digest] = CachedKey(authenticated, time.monotonic() + _CACHED_S)
        return authenticated

    def cached(self, digest: bytes) -> CachedKey | None:
        """Also records the key's use. A fresh entry is valid until the current second ends, so that
        a use in the next second is recorded too."""
        key = self._cached.get(digest)
        if key is None:
            return None
        now = time.monotonic()
        if now >= key.fresh_until + _STALE_S:
            return None
        key.is_fresh = now < key.fresh_until
        if key.is_fresh:
            key.checked_until = min(key.fresh_until, now + 1 - time.time() % 1)
        second = self._clock()
        if second != key.use_recorded_at:
            key.use_recorded_at = second
            self._key_use.note(KeyKind.PROJECT, key.caller, second)
        return key

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
            model_lists=(tuple(stored.models or ()), tuple(stored.project_models or ())),
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
