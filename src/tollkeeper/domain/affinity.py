"""Computes the order in which a session prefers the replicas (addresses) of a backend, and the
hashes that a backend gets instead of a client's cache key and cache salt.

Nothing is stored. Every hash depends on the gateway's secret, the organization and the project. So
the same text has unrelated hashes for two projects, and a hash cannot be computed without the
secret.
"""

import hashlib
import hmac
from collections.abc import Iterable
from enum import StrEnum

from tollkeeper.domain.access import OrganizationId, ProjectId

# The size of the length that `_with_length` puts in front of a part.
_LENGTH_BYTES = 8


class CachePurpose(StrEnum):
    """Lists the purposes of hashes. The same text has different hashes for different purposes."""

    PROMPT_CACHE_KEY = "prompt_cache_key"
    CACHE_SALT = "cache_salt"


def affinity_key(
    secret: bytes, organization_id: OrganizationId, project_id: ProjectId, session: str
) -> bytes:
    """Returns the 32 bytes that select a replica. `session` is the client's session id or, if the
    client sent none, its cache key. The bytes do not reveal this value."""
    return _keyed_hash(secret, "affinity", organization_id, project_id, session)


def isolated_text(
    secret: bytes,
    organization_id: OrganizationId,
    project_id: ProjectId,
    purpose: CachePurpose,
    text: str,
) -> str:
    """Returns the hash (64 hexadecimal digits) that a backend gets instead of the client's text. It
    differs between projects, so projects do not share cache entries."""
    return _keyed_hash(secret, purpose.value, organization_id, project_id, text).hex()


def rendezvous_order(key: bytes, names: Iterable[str]) -> list[str]:
    """Orders the names from the most to the least preferred for this key (rendezvous hashing).

    The order depends only on the key and the names, so all processes agree. If a name is removed,
    only the keys that preferred the removed name move to another name.
    """
    prefix = _with_length(key)
    weighted = [(hashlib.sha256(prefix + name.encode()).digest(), name) for name in names]
    weighted.sort(reverse=True)
    return [name for _, name in weighted]


def _keyed_hash(
    secret: bytes, purpose: str, organization_id: OrganizationId, project_id: ProjectId, text: str
) -> bytes:
    # `surrogatepass`: a client's text may be any string, so a lone surrogate must not cause an
    # error.
    parts = (
        purpose.encode(),
        organization_id.bytes,
        project_id.bytes,
        text.encode("utf-8", "surrogatepass"),
    )
    return hmac.digest(secret, b"".join(map(_with_length, parts)), "sha256")


def _with_length(part: bytes) -> bytes:
    """Puts the length in front of the part, so that different lists of parts never give the same
    bytes."""
    return len(part).to_bytes(_LENGTH_BYTES, "big") + part
