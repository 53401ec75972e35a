"""Ids in paths and queries. A malformed one is a 404, like one that doesn't exist."""

from typing import NoReturn
from uuid import UUID

from tollkeeper.core.access import KeyId, ProjectId
from tollkeeper.core.errors import NotFound

_UUID_LENGTH = 36


def project_id(text: str, *, param: str = "project_id") -> ProjectId:
    uuid = _parse_uuid(text)
    return ProjectId(uuid) if uuid is not None else _raise_not_found("project", param)


def key_id(text: str, *, param: str = "api_key_id") -> KeyId:
    uuid = _parse_uuid(text)
    return KeyId(uuid) if uuid is not None else _raise_not_found("API key", param)


def policy_id(text: str) -> str:
    # PostgreSQL can't store this character, so no policy has such an id.
    if "\x00" in text:
        _raise_not_found("policy", "policy_id")
    return text


def _parse_uuid(text: str) -> UUID | None:
    """Only the canonical form. `UUID` would also accept braces, URNs and missing hyphens."""
    if len(text) != _UUID_LENGTH:
        return None
    try:
        uuid = UUID(text)
    except ValueError:
        return None
    return uuid if str(uuid) == text.lower() else None


def _raise_not_found(noun: str, param: str) -> NoReturn:
    raise NotFound(f"There is no such {noun}.", param=param)
