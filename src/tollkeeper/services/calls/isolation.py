"""Replaces session and cache keys of clients by values that only this gateway can compute, so that
backends never see the original keys and projects never share one."""

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
        """Returns hashes instead of the client's texts, so that two tenants with the same key do
        not share entries of a backend's cache. A backend that can separate caches gets a salt with
        every call: otherwise the number of cached tokens would reveal what another project has
        sent."""
        is_asked = salt is not None
        if salt is None and model.isolates_cache:
            salt = ""
        return CachingWish(
            key=None if key is None else self._isolated(caller, CachePurpose.PROMPT_CACHE_KEY, key),
            salt=None if salt is None else self._isolated(caller, CachePurpose.CACHE_SALT, salt),
            salt_is_asked=is_asked,
        )

    def _isolated(self, caller: ProjectCaller, purpose: CachePurpose, text: str) -> str:
        return isolated_text(self._secret, caller.organization_id, caller.project_id, purpose, text)
