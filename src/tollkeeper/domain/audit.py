"""Defines audit entries: who changed what, and the state before and after."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tollkeeper.domain.access import OrganizationId

# The fields of a changed object: JSON values without secrets, amounts as decimal USD.
ObjectState: TypeAlias = Mapping[str, object]


class ActorKind(StrEnum):
    CLI = "cli"
    CONSOLE = "console"
    API = "api"
    # A rule of the settings, or the demo.
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Actor:
    """Identifies who makes a change: a shell user, a signed-in operator, an admin key, or the
    gateway."""

    kind: ActorKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """Describes one change of one object. `operation` is the name of the use case."""

    organization_id: OrganizationId
    operation: str
    object_kind: str
    object_id: str
    # None if the object was created, or has no state that the change replaces.
    before: ObjectState | None
    after: ObjectState | None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: int
    at: int
    actor: Actor
    change: Change
