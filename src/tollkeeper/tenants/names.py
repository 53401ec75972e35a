"""Finds what an operator names in a command, renames objects, and keeps names unique.

You can type an id, its beginning, or a name. Names aren't always unique (two organizations may have
projects of the same name), so a name must match completely, and an ambiguous text is rejected with
a list of what it fits.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.database.database import Connection, Database
from tollkeeper.tenants import names_store as names
from tollkeeper.tenants.audit.service import record_change
from tollkeeper.tenants.keys import redact_keys
from tollkeeper.tenants.organization import (
    NAME_LENGTH_MAX,
    AdminKey,
    Organization,
    Project,
    ProjectKey,
)

Named = TypeVar("Named", Organization, Project, ProjectKey, AdminKey)

_LISTED_MAX = 5
_ID_DIGITS = 32
_SHOWN_ID_LENGTH = 8
# At least four digits, so a short name isn't mistaken for the beginning of an id.
_ID_OR_PREFIX = re.compile(r"[0-9a-f]{4,32}")
_POLICY_ID = re.compile(r"pol_[0-9a-f]{32}")
_POLICY_ID_OR_PREFIX = re.compile(r"pol_[0-9a-f]{4,32}")


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

    async def policy_named(self, text: str, organization_id: OrganizationId | None = None) -> str:
        text = text.strip()
        if _POLICY_ID.fullmatch(text):
            return text
        if not _is_searchable(text):
            raise _not_found("policy", text)
        async with self._database.autocommit() as connection:
            found = await names.find_policies(
                connection,
                name=text,
                id_prefix=text if _POLICY_ID_OR_PREFIX.fullmatch(text) else None,
                organization_id=organization_id,
                limit=_LISTED_MAX + 1,
            )
        if len(found) != 1:
            raise _no_single_match(
                "policy", text, [f"{match.name} ({match.id})" for match in found]
            )
        return found[0].id

    async def names_of(self, ids: Iterable[object]) -> dict[str, str]:
        """For display, by id. Omits ids without an object. Where names of one kind are equal, adds
        the beginning of the id."""
        texts = set(map(str, ids))
        uuids = [whole_id for text in texts if (whole_id := _whole_id(text)) is not None]
        policies = [text for text in texts if _POLICY_ID.fullmatch(text)]
        async with self._database.autocommit() as connection:
            found = await names.find_names(connection, uuids, policies)
        count = Counter((named.kind, named.name) for named in found)
        return {
            named.id: named.name
            if count[named.kind, named.name] == 1
            else f"{named.name} ({named.id[:_SHOWN_ID_LENGTH]})"
            for named in found
        }

    async def _find(
        self, kind: names.NamedKind, text: str, organization_id: OrganizationId | None = None
    ) -> UUID:
        text = text.strip()
        whole_id = _whole_id(text)
        if whole_id is not None:
            # If nothing has this id, the use case that gets it raises NotFound.
            return whole_id
        if not _is_searchable(text):
            raise _not_found(kind.noun, text)
        async with self._database.autocommit() as connection:
            found = await names.find(
                connection,
                kind,
                name=text,
                ids=_id_range(text),
                organization_id=organization_id,
                limit=_LISTED_MAX + 1,
            )
        if len(found) != 1:
            raise _no_single_match(kind.noun, text, [_description(match) for match in found])
        return found[0].id


def checked_name(name: str) -> str:
    """For commands. Names in API requests are checked when they're decoded."""
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
    """Of the same kind and owner, ignoring case; what's archived, revoked or expired doesn't count.
    Until its transaction ends, the caller must hold a lock that keeps others from naming such an
    object. `identity` gets the name."""
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
    named: Named,
    name: str,
    owner_id: UUID | None = None,
) -> Named:
    """Hold the lock that `require_unused_name` describes."""
    await require_unused_name(connection, kind, name, named.id, owner_id)
    await names.rename(connection, kind, named.id, name)
    await record_change(
        connection,
        getattr(named, "organization_id", OrganizationId(named.id)),
        f"{kind.object_kind}_rename",
        kind.object_kind,
        named.id,
        before={"name": named.name},
        after={"name": name},
    )
    return replace(named, name=name)


def _whole_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _is_searchable(text: str) -> bool:
    return bool(text) and "\x00" not in text


def _id_range(text: str) -> tuple[UUID, UUID] | None:
    """The lowest and highest id that begin like this; None if it's not the beginning of an id."""
    digits = text.lower().replace("-", "")
    if _ID_OR_PREFIX.fullmatch(digits) is None:
        return None
    return UUID(digits.ljust(_ID_DIGITS, "0")), UUID(digits.ljust(_ID_DIGITS, "f"))


def _description(found: names.Named) -> str:
    return f"{found.name} ({found.id}{', ' if found.note else ''}{found.note})"


def _no_single_match(noun: str, text: str, found: list[str]) -> NotFound | StateConflict:
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
        return NotFound(
            f"There is no {noun} {shown}: this is the value of a key. Give a name or an id."
        )
    return NotFound(f"There is no {noun} {text}.")
