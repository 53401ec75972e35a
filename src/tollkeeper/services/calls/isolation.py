"""Replaces the session ids and cache keys of clients with hashes that only this gateway can
compute. So backends never see the original values, and two projects never have the same value."""

from tollkeeper.domain.access import ProjectCaller
from tollkeeper.domain.affinity import CachePurpose, affinity_key, isolated_text
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.prompt import CachingWish
from tollkeeper.services.vault import Vault


class Isolation:
    def __init__(self, vault: Vault) -> None:
        self._secret = vault.derive("isolation")

    def affinity(self, caller: ProjectCaller, session: str) -> bytes:
        return affinity_key(self._secret, caller.organization_id, caller.project_id, session)

    def caching_wish(
        self, caller: ProjectCaller, model: Model, key: str | None, salt: str | None = None
    ) -> CachingWish:
        """Returns the cache hints for the backend. They contain hashes in place of the client's
        `key` and `salt`, so that two projects with the same key do not share entries of the
        backend's cache. If the backend can separate caches by a salt, it gets a salt with every
        call. Without a salt, the number of cached tokens would reveal whether another project has
        sent the same text."""
        client_asks_for_salt = salt is not None
        if salt is None and model.isolates_cache:
            salt = ""
        return CachingWish(
            key=None if key is None else self._isolated(caller, CachePurpose.PROMPT_CACHE_KEY, key),
            salt=None if salt is None else self._isolated(caller, CachePurpose.CACHE_SALT, salt),
            salt_is_asked=client_asks_for_salt,
        )

    def _isolated(self, caller: ProjectCaller, purpose: CachePurpose, text: str) -> str:
        return isolated_text(self._secret, caller.organization_id, caller.project_id, purpose, text)
