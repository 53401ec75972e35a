"""A caller's cache and session hints, as they may leave the gateway."""

from tollkeeper.domain.access import ProjectCaller
from tollkeeper.domain.affinity import CachePurpose
from tollkeeper.domain.prompt import CachingWish
from tollkeeper.services.use_cases import Services


def affinity_of(
    services: Services, caller: ProjectCaller, session: str | None, cache_key: str | None
) -> bytes | None:
    """A session and a cache key say the same of two calls: that they share a beginning."""
    hint = session or cache_key
    return services.isolation.affinity(caller, hint) if hint else None


def caching_wish(
    services: Services, caller: ProjectCaller, key: str | None, salt: str | None = None
) -> CachingWish:
    """Never the caller's own text: two tenants with the same key must not meet in a cache."""
    isolated = services.isolation.isolated
    return CachingWish(
        key=None if key is None else isolated(caller, CachePurpose.PROMPT_CACHE_KEY, key),
        salt=None if salt is None else isolated(caller, CachePurpose.CACHE_SALT, salt),
    )
