"""Turns a caller's session and cache hints into hashes that are safe to use outside its project."""

from tollkeeper.domain.access import ProjectCaller
from tollkeeper.domain.affinity import CachePurpose
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.prompt import CachingWish
from tollkeeper.services.use_cases import Services


def affinity_of(
    services: Services, caller: ProjectCaller, session: str | None, cache_key: str | None
) -> bytes | None:
    """The session, or else the cache key: both mean that calls share the beginning of a prompt."""
    hint = session or cache_key
    return services.isolation.affinity(caller, hint) if hint else None


def caching_wish(
    services: Services,
    caller: ProjectCaller,
    model: Model,
    key: str | None,
    salt: str | None = None,
) -> CachingWish:
    """Contains hashes instead of the caller's text, so that two tenants with the same key do not
    share entries of a backend's cache. A backend that can keep caches apart gets a salt with every
    call: how much of a prompt was cached would tell what another project has sent."""
    isolated = services.isolation.isolated
    is_asked = salt is not None
    if salt is None and model.isolates_cache:
        salt = ""
    return CachingWish(
        key=None if key is None else isolated(caller, CachePurpose.PROMPT_CACHE_KEY, key),
        salt=None if salt is None else isolated(caller, CachePurpose.CACHE_SALT, salt),
        salt_is_asked=is_asked,
    )
