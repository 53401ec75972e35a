"""Checks that names are free, and finds organizations, projects and keys by an operator's text.

A text is an id, the beginning of an id, or a name. Commands keep names unique among objects in use,
but two tenants may choose the same one, and the API leaves key names to the tenant. So a name must
match completely, and a text that matches several objects is rejected with a list of them.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.domain.keys import redact_keys
from tollkeeper.domain.organization import (
    NAME_LENGTH_MAX,
    AdminKey,
    Organization,
    Project,
    ProjectKey,
)
from tollkeeper.services.audit import record_change
from tollkeeper.storage import names
from tollkeeper.storage.database import Connection, Database

Named = TypeVar("Named", Organization, Project, ProjectKey, AdminKey)

_LISTED_MAX = 5
_ID_DIGITS = 32
_SHOWN_ID_LENGTH = 8
# An id or its beginning, of at least four digits, so that a short name is not mistaken for one.
_ID_OR_PREFIX = re.compile(r"[0-9a-f]{4,32}")
_POLICY_ID = re.compile(r"pol_[0-9a-f]{32}")


class Names:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def organization_named(self, text: str) -> OrganizationId:
        return OrganizationId(await self._find(names.ORGANIZATIONS, text))

    async def project_named(
        self, text: str, organization_id: OrganizationId | None = None
    ) -> ProjectId:
        return ProjectId(await self._find(names.PROJECTS, text, organization_id))

    async def project_key_named(
        self, text: str, organization_id: OrganizationId | None = None
    ) -> KeyId:
        return KeyId(await self._find(names.PROJECT_KEYS, text, organization_id))

    async def admin_key_named(self, text: str) -> KeyId:
        return KeyId(await self._find(names.ADMIN_KEYS, text))

    async def policy_named(self, text: str) -> str:
        if _POLICY_ID.fullmatch(text):
            return text
        if not _is_searchable(text):
            raise _not_found("policy", text)
        async with self._database.reading() as connection:
            found = await names.find_policies(connection, text=text, limit=_LISTED_MAX + 1)
        if len(found) != 1:
            raise _refusal("policy", text, [f"{one.name} ({one.id})" for one in found])
        return found[0].id

    async def names_of(self, ids: Iterable[object]) -> dict[str, str]:
        """Returns the name of each id that belongs to a named object, for people. Objects of one
        kind with the same name also show the beginning of their ids."""
        texts = set(map(str, ids))
        uuids = [whole for text in texts if (whole := _whole_id(text)) is not None]
        policies = [text for text in texts if _POLICY_ID.fullmatch(text)]
        async with self._database.reading() as connection:
            found = await names.find_names(connection, uuids, policies)
        count = Counter((one.kind, one.name) for one in found)
        return {
            one.id: one.name
            if count[one.kind, one.name] == 1
            else f"{one.name} ({one.id[:_SHOWN_ID_LENGTH]})"
            for one in found
        }

    async def _find(
        self, kind: names.NamedKind, text: str, organization_id: OrganizationId | None = None
    ) -> UUID:
        whole = _whole_id(text)
        if whole is not None:
            # The use case reports whether the object exists.
            return whole
        if not _is_searchable(text):
            raise _not_found(kind.noun, text)
        async with self._database.reading() as connection:
            found = await names.find(
                connection,
                kind,
                name=text,
                ids=_id_range(text),
                organization_id=organization_id,
                limit=_LISTED_MAX + 1,
            )
        if len(found) != 1:
            raise _refusal(kind.noun, text, [_listed(one) for one in found])
        return found[0].id


def checked_name(name: str) -> str:
    """Trims and checks a name from an operator's command. The wire types check names in
    requests."""
    name = name.strip()
    if not 1 <= len(name) <= NAME_LENGTH_MAX or "\x00" in name:
        raise InvalidRequest(f"A name has 1 to {NAME_LENGTH_MAX} characters.", param="name")
    return name


async def require_unused_name(
    connection: Connection,
    kind: names.NamedKind,
    name: str,
    identity: UUID,
    owner_id: UUID | None = None,
) -> None:
    """Raises if another of the owner's objects in use has this name. The caller holds a lock until
    its transaction ends, so that two transactions cannot use the same name."""
    taken_by = await names.find_in_use(
        connection, kind, name=name, owner_id=owner_id, other_than=identity
    )
    if taken_by is not None:
        raise StateConflict(
            f"The name {name!r} is taken already, by the {kind.noun} {taken_by}.", param="name"
        )


async def rename(
    connection: Connection,
    kind: names.NamedKind,
    found: Named,
    name: str,
    owner_id: UUID | None = None,
) -> Named:
    """Renames an object. The caller holds the lock that `require_unused_name` describes."""
    await require_unused_name(connection, kind, name, found.id, owner_id)
    await names.rename(connection, kind, found.id, name)
    await record_change(
        connection,
        getattr(found, "organization_id", OrganizationId(found.id)),
        f"{kind.object_kind}_rename",
        kind.object_kind,
        found.id,
        before={"name": found.name},
        after={"name": name},
    )
    return replace(found, name=name)


def _whole_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _is_searchable(text: str) -> bool:
    return bool(text) and "\x00" not in text


def _id_range(text: str) -> tuple[UUID, UUID] | None:
    """Returns the first and the last id that begin with the text."""
    digits = text.lower().replace("-", "")
    if _ID_OR_PREFIX.fullmatch(digits) is None:
        return None
    return UUID(digits.ljust(_ID_DIGITS, "0")), UUID(digits.ljust(_ID_DIGITS, "f"))


def _listed(found: names.Named) -> str:
    return f"{found.name} ({found.id}{', ' if found.note else ''}{found.note})"


def _refusal(noun: str, text: str, found: list[str]) -> NotFound | StateConflict:
    if not found:
        return _not_found(noun, text)
    listed = ", ".join(found[:_LISTED_MAX])
    more = " and more" if len(found) > _LISTED_MAX else ""
    return StateConflict(
        f"{text!r} fits more than one {noun}: {listed}{more}. Give the id, or the beginning of it."
    )


def _not_found(noun: str, text: str) -> NotFound:
    shown = redact_keys(text)
    if shown != text:
        return NotFound(f"There is no {noun} {shown}: this is a key's value. Give its name or id.")
    return NotFound(f"There is no {noun} {text}.")
