"""Affinity without state: which replica a session prefers, and what a cache may see of a caller.

Every value is keyed with the gateway's secret and framed with organization and project, so that
the same text of two tenants has nothing in common, and nobody outside can compute it.
"""

import hashlib
import hmac
from collections.abc import Iterable
from enum import StrEnum

from tollkeeper.domain.access import OrganizationId, ProjectId

_LENGTH_BYTES = 8


class CachePurpose(StrEnum):
    """What travels upstream in place of the caller's own text: one purpose never equals another."""

    PROMPT_CACHE_KEY = "prompt_cache_key"
    CACHE_SALT = "cache_salt"


def affinity_key(
    secret: bytes, organization_id: OrganizationId, project_id: ProjectId, session: str
) -> bytes:
    """The key by which a session finds its replica: 32 bytes that say nothing of the session."""
    return _keyed(secret, "affinity", organization_id, project_id, session)


def isolated_text(
    secret: bytes,
    organization_id: OrganizationId,
    project_id: ProjectId,
    purpose: CachePurpose,
    text: str,
) -> str:
    """What a backend gets in place of the caller's text: 64 hexadecimal digits."""
    return _keyed(secret, purpose.value, organization_id, project_id, text).hex()


def rendezvous_order(key: bytes, names: Iterable[str]) -> list[str]:
    """The names from the most to the least preferred for this key.

    The order depends on nothing but key and names, so every process agrees; a name that leaves
    moves only the keys that it held.
    """
    prefix = _framed(key)
    weighted = [(hashlib.sha256(prefix + name.encode()).digest(), name) for name in names]
    weighted.sort(reverse=True)
    return [name for _, name in weighted]


def _keyed(
    secret: bytes, purpose: str, organization_id: OrganizationId, project_id: ProjectId, text: str
) -> bytes:
    # A text may hold half of a surrogate pair: it is an opaque key, so it is taken as it is.
    parts = (
        purpose.encode(),
        organization_id.bytes,
        project_id.bytes,
        text.encode("utf-8", "surrogatepass"),
    )
    return hmac.digest(secret, b"".join(map(_framed, parts)), "sha256")


def _framed(part: bytes) -> bytes:
    """The length goes first, so that no two lists of parts give the same bytes."""
    return len(part).to_bytes(_LENGTH_BYTES, "big") + part
