"""Defines audit entries: the actor, the changed object, and its state before and after the
change."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tollkeeper.domain.access import OrganizationId

# The fields of a changed object as JSON values. Secrets are omitted, and amounts are decimal
# strings in USD.
ObjectState: TypeAlias = Mapping[str, object]


class ActorKind(StrEnum):
    CLI = "cli"
    CONSOLE = "console"
    API = "api"
    # The gateway itself: a rule in the settings, a payment event, or the demo.
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Actor:
    """Identifies the actor of a change: a shell user, an operator in the console, an admin key, or
    the gateway itself."""

    kind: ActorKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """Describes one change of one object. `operation` is the name of the use case that made the
    change."""

    # None if the change concerns the whole installation.
    organization_id: OrganizationId | None
    operation: str
    object_kind: str
    object_id: str
    # `before` is None if the object was created, or if the change does not replace any state.
    # `after` is None if the change removed the object.
    before: ObjectState | None
    after: ObjectState | None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: int
    # The time of the change, in Unix seconds.
    at: int
    actor: Actor
    change: Change
