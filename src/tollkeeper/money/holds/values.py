"""The values in the ledger: holds, resolutions, marks and locked accounts. A reservation is a stored hold,
and ends with exactly one resolution."""

from enum import StrEnum
from uuid import UUID

import msgspec

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.pricing import Bounds, Pricing
from tollkeeper.money.holds.rule import AccountState, AdmissionRequest
from tollkeeper.money.overage.rule import Excess


class Hold(AdmissionRequest, frozen=True, gc=False, kw_only=True):
    organization_id: OrganizationId
    id: UUID
    pricing: Pricing
    bounds: Bounds
    policy_ids: tuple[str, ...] = ()


class ResolutionKind(StrEnum):
    SETTLED = "settled"
    RELEASED = "released"


class Resolution(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A settlement with the cost by line item, or a release. JSON leaves out line items without cost."""

    organization_id: OrganizationId
    reservation_id: UUID
    kind: ResolutionKind
    resolved_by: str
    # In picousd, by line item.
    prompt: int = 0
    completion: int = 0
    input_cache_read: int = 0
    input_cache_write: int = 0
    input_audio: int = 0
    output_audio: int = 0
    output_image: int = 0
    web_search: int = 0
    image: int = 0
    request: int = 0
    other: int = 0
    estimated: bool = False
    # If the settlement exceeds its hold and this must be noted.
    excess: Excess | None = None


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The cost is unknown until reconciliation resolves the reservation."""

    organization_id: OrganizationId
    reservation_id: UUID
    reason: str


class Ending(StrEnum):
    DONE = "done"
    # It was resolved or marked before, so nothing changed.
    ALREADY_ENDED = "already_ended"
    MISSING = "missing"


class LockedAccounts(msgspec.Struct, frozen=True):
    """The amounts reflect all resolutions and marks, even those not yet folded."""

    states: dict[OrganizationId, AccountState]
    # A number that changes with the organization's published policies.
    epochs: dict[OrganizationId, int]
    now_us: int
