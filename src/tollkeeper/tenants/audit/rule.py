"""Who changed which object, and its state before and after."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tollkeeper.core.access import OrganizationId

# JSON values, without secrets, and with amounts as decimal strings in USD.
ObjectState: TypeAlias = Mapping[str, object]


class ActorKind(StrEnum):
    CLI = "cli"
    CONSOLE = "console"
    API = "api"
    # A rule in the settings, a payment event, or the demo.
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Actor:
    """A shell user, an operator in the console, an admin key, or the gateway itself."""

    kind: ActorKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """`operation` is the name of the use case."""

    # None: the whole installation.
    organization_id: OrganizationId | None
    operation: str
    object_kind: str
    object_id: str
    # None if it was created, or nothing was replaced. `after` is None if it was removed.
    before: ObjectState | None
    after: ObjectState | None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: int
    at: int
    actor: Actor
    change: Change
