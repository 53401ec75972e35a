"""Identifiers in paths and queries: what is not an id of ours cannot exist, so it is not found."""

from typing import NoReturn
from uuid import UUID

from tollkeeper.domain.access import KeyId, ProjectId
from tollkeeper.domain.errors import NotFound

_UUID_LENGTH = 36


def project_id(text: str, *, param: str = "project_id") -> ProjectId:
    found = _uuid(text)
    return ProjectId(found) if found is not None else _absent("project", param)


def key_id(text: str, *, param: str = "api_key_id") -> KeyId:
    found = _uuid(text)
    return KeyId(found) if found is not None else _absent("API key", param)


def policy_id(text: str) -> str:
    if "\x00" in text:
        _absent("policy", "policy_id")
    return text


def _uuid(text: str) -> UUID | None:
    # The canonical spelling only: UUID() takes braces, URNs and missing hyphens too.
    if len(text) != _UUID_LENGTH:
        return None
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found if str(found) == text.lower() else None


def _absent(noun: str, param: str) -> NoReturn:
    raise NotFound(f"There is no such {noun}.", param=param)
