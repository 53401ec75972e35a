"""The order in which a session prefers a backend's replicas, and the hashes that a backend gets instead of a
client's cache key and cache salt.

Nothing is stored. Every hash depends on the gateway's secret, the organization and the project, so two
projects' hashes of one text are unrelated, and nobody can compute one without the secret.
"""

import hashlib
import hmac
from collections.abc import Iterable
from enum import StrEnum

from tollkeeper.core.access import OrganizationId, ProjectId

_LENGTH_BYTES = 8


class CachePurpose(StrEnum):
    """The same text has another hash for each purpose."""

    PROMPT_CACHE_KEY = "prompt_cache_key"
    CACHE_SALT = "cache_salt"


def affinity_key(
    secret: bytes, organization_id: OrganizationId, project_id: ProjectId, session: str
) -> bytes:
    """Selects a replica. `session` is the client's session id, otherwise its cache key; the hash doesn't
    reveal it."""
    return _keyed_hash(secret, "affinity", organization_id, project_id, session)


def isolated_text(
    secret: bytes,
    organization_id: OrganizationId,
    project_id: ProjectId,
    purpose: CachePurpose,
    text: str,
) -> str:
    """It differs between projects, so they share no cache entries."""
    return _keyed_hash(secret, purpose.value, organization_id, project_id, text).hex()


def rendezvous_order(key: bytes, names: Iterable[str]) -> list[str]:
    """Rendezvous hashing, the most preferred name first. All processes agree, and removing a name only moves
    the keys that preferred it."""
    prefix = _with_length(key)
    weighted = [(hashlib.sha256(prefix + name.encode()).digest(), name) for name in names]
    weighted.sort(reverse=True)
    return [name for _, name in weighted]


def _keyed_hash(
    secret: bytes, purpose: str, organization_id: OrganizationId, project_id: ProjectId, text: str
) -> bytes:
    # A client's text may have lone surrogates, which mustn't cause an error.
    parts = (
        purpose.encode(),
        organization_id.bytes,
        project_id.bytes,
        text.encode("utf-8", "surrogatepass"),
    )
    return hmac.digest(secret, b"".join(map(_with_length, parts)), "sha256")


def _with_length(part: bytes) -> bytes:
    """So different lists of parts never give the same bytes."""
    return len(part).to_bytes(_LENGTH_BYTES, "big") + part
