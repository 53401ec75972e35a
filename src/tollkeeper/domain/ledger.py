"""The words of the ledger: a hold, how it ends, and what became of a wish to end it."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import msgspec

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.admission import AccountState
from tollkeeper.domain.catalog import Pricing
from tollkeeper.domain.pricing import Bounds


class Hold(msgspec.Struct, frozen=True, gc=False):
    """An upper bound of what one call can cost, to be held before the call is dispatched."""

    organization_id: OrganizationId
    id: UUID
    project_id: ProjectId
    key_id: KeyId
    model: str
    pricing: Pricing
    bounds: Bounds
    hold_picousd: int


class ResolutionKind(StrEnum):
    SETTLED = "settled"
    RELEASED = "released"


class Resolution(msgspec.Struct, frozen=True, gc=False):
    """How one reservation ends, with what the call cost by price dimension."""

    organization_id: OrganizationId
    reservation_id: UUID
    kind: ResolutionKind
    resolved_by: str
    prompt: int = 0
    completion: int = 0
    input_cache_read: int = 0
    input_cache_write: int = 0
    web_search: int = 0
    image: int = 0
    request: int = 0
    other: int = 0
    estimated: bool = False


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A reservation whose cost nobody knows: it is unsettled until somebody resolves it."""

    organization_id: OrganizationId
    reservation_id: UUID
    reason: str


class Ending(StrEnum):
    """What became of a wish to resolve a reservation or to mark it."""

    DONE = "done"
    # It had been resolved or marked before, and stays as it is.
    BEFORE = "before"
    # There is no such reservation.
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class LockedAccounts:
    """Accounts under lock, with everything folded in that was waiting, and the server's clock."""

    states: dict[OrganizationId, AccountState]
    # The number of each organization's last policy change.
    epochs: dict[OrganizationId, int]
    now_us: int
    month: int
