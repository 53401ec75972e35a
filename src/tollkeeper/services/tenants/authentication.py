"""Finds the caller (the project or organization) to which an API key belongs, and rejects keys that
are not active."""

import hmac
import time
from dataclasses import dataclass
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
# The time for which a cached key is fresh.
_CACHED_S = 30.0
# After `_CACHED_S`, a cached key can be used for this additional time, but only to reject calls.
_STALE_S = 30.0


@dataclass(slots=True, eq=False)
class CachedKey:
    """Contains the caller of a key that was read from the database a short time ago."""

    caller: ProjectCaller
    # Times of the monotonic clock. Until `fresh_until`, this entry is fresh. Until `checked_until`, it
    # need not be looked up again.
    fresh_until: float
    checked_until: float = 0.0
    # Whether the entry may be used to serve a call. An older entry may only be used to reject a call
    # while the process is overloaded. Without older entries, all calls with a key would wait for the
    # database when the key's entry expires, even during an overload.
    is_fresh: bool = True
    # The Unix second in which a use of the key was last recorded.
    use_recorded_at: int = 0


class Authentication:
    def __init__(self, database: Database, key_use: KeyUse, clock: Clock) -> None:
        self._key_use = key_use
        self._clock = clock
        self._project_keys = KeyLookups(database, project_keys.find_by_digests)
        self._admin_keys = KeyLookups(database, admin_keys.find_by_digests)
        # Cached keys by the digest of the key. The oldest entry comes first.
        self._cached: dict[bytes, CachedKey] = {}

    async def authenticate(self, presented_key: str) -> Caller:
        """Returns the caller of a key. Raises Unauthenticated if the key is not valid. Reads the key
        from the database each time, so that a revocation takes effect with the next request."""
        kind = key_kind(presented_key)
        if kind is None:
            raise Unauthenticated(_INVALID_KEY)
        return await self._authenticate(kind, key_digest(presented_key))

    async def authenticate_and_cache(self, presented_key: str) -> Caller:
        """Works like `authenticate`, and also caches project keys for `cached`. A cached key may
        meanwhile be revoked. So only inference calls may use it: their admission reads the key
        again, under a lock."""
        authenticated = await self.authenticate(presented_key)
        if isinstance(authenticated, ProjectCaller):
            digest = key_digest(presented_key)
            self._cached.pop(digest, None)
            if len(self._cached) >= _CACHED_MAX:
                del self._cached[next(iter(self._cached))]
            self._cached[digest] = CachedKey(authenticated, time.monotonic() + _CACHED_S)
        return authenticated

    def cached(self, digest: bytes) -> CachedKey | None:
        """Returns the cached entry of a key, None if there is no entry. Also records the use of the
        key. If the entry is fresh, the result is valid until the end of the current second, so that
        the use of the key in the next second is recorded too."""
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
