"""Defines the values in the ledger: holds, resolutions, marks and locked accounts.

A reservation is the stored form of a hold. It ends with exactly one resolution.
"""

from enum import StrEnum
from uuid import UUID

import msgspec

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.admission import AccountState, AdmissionRequest
from tollkeeper.domain.excess import Excess
from tollkeeper.domain.pricing import Bounds, Pricing


class Hold(AdmissionRequest, frozen=True, gc=False, kw_only=True):
    """Describes the amount that is reserved before a call is sent: the call's maximum cost."""

    organization_id: OrganizationId
    id: UUID
    pricing: Pricing
    bounds: Bounds
    # The policies that the request names.
    policy_ids: tuple[str, ...] = ()


class ResolutionKind(StrEnum):
    SETTLED = "settled"
    RELEASED = "released"


class Resolution(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Describes the end of one reservation: a settlement with the call's cost by line item, or a
    release without cost. JSON omits the line items without cost."""

    organization_id: OrganizationId
    reservation_id: UUID
    kind: ResolutionKind
    resolved_by: str
    # The cost in picousd, by line item.
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
    # Set if the settlement exceeds its hold, and this has to be noted.
    excess: Excess | None = None


class Mark(msgspec.Struct, frozen=True, gc=False):
    """Marks a reservation with unknown cost as unsettled, until reconciliation resolves it."""

    organization_id: OrganizationId
    reservation_id: UUID
    reason: str


class Ending(StrEnum):
    """Lists the possible outcomes of an attempt to resolve or mark a reservation."""

    DONE = "done"
    # The reservation had already been resolved or marked, so nothing was changed.
    ALREADY_ENDED = "already_ended"
    # The reservation does not exist.
    MISSING = "missing"


class LockedAccounts(msgspec.Struct, frozen=True):
    """Contains the accounts that a transaction has locked, and the database server's time. The
    amounts already reflect all resolutions and marks, even if these are not yet folded (added to
    the stored account)."""

    states: dict[OrganizationId, AccountState]
    # For each organization: the epoch, a number that changes with its published policies.
    epochs: dict[OrganizationId, int]
    now_us: int
