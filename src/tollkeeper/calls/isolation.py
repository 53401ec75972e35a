"""Replaces clients' session ids and cache keys with hashes that only this gateway can compute, so
backends never see the originals and no two projects share a value."""

from tollkeeper.core.access import ProjectCaller
from tollkeeper.core.affinity import CachePurpose, affinity_key, isolated_text
from tollkeeper.core.catalog import Model
from tollkeeper.core.prompt import CachingWish
from tollkeeper.core.runtime.vault import Vault


class Isolation:
    def __init__(self, vault: Vault) -> None:
        self._secret = vault.derive("isolation")

    def affinity(self, caller: ProjectCaller, session: str) -> bytes:
        return affinity_key(self._secret, caller.organization_id, caller.project_id, session)

    def caching_wish(
        self, caller: ProjectCaller, model: Model, key: str | None, salt: str | None = None
    ) -> CachingWish:
        """Hashes of the client's `key` and `salt`, so projects with the same key share no cache
        entries. If the backend can salt caches, every call is salted: otherwise the number of
        cached tokens would reveal that another project has sent the same text."""
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
