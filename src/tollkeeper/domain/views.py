"""Defines what operators see of balances, caps, calls and alerts."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.activity import VerdictRecord
from tollkeeper.domain.alerts import AlertKind
from tollkeeper.domain.caps import Cap
from tollkeeper.domain.prompt import FreeObject
from tollkeeper.domain.usage import Usage


@dataclass(frozen=True, slots=True)
class Balance:
    """Shows an organization's money. `settled` includes overage. `granted` is the sum of all
    others."""

    granted_picousd: int
    available_picousd: int
    held_picousd: int
    settled_picousd: int
    unsettled_picousd: int


@dataclass(frozen=True, slots=True)
class CapUse:
    """Shows the cap of an organization, a project or, with `key_id`, a key, and its use."""

    project_id: ProjectId | None
    cap: Cap
    # Unsettled holds count as held.
    held_picousd: int
    spent_picousd: int
    # Of rotated keys that share the cap: the newest, and the first.
    key_id: KeyId | None = None
    first_key_id: KeyId | None = None
    # The start of its next period, in seconds since 1970; None for a total cap.
    resets_at: int | None = None

    @property
    def remaining_picousd(self) -> int:
        """Returns the remaining amount, which is negative if the cap was set below the spent
        amount, or after overage."""
        return self.cap.amount_picousd - self.held_picousd - self.spent_picousd


@dataclass(frozen=True, slots=True)
class ActivityEntry:
    """Shows a call with its activity record and its current ledger rows. If the process died before
    it wrote the record, only the ledger has the call, and all other fields are None."""

    request_id: UUID
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId
    model: str
    started_at_ms: int
    operation: str | None
    streamed: bool | None
    duration_ms: int | None
    first_piece_ms: int | None
    status: int | None
    error_code: str | None
    finish: str | None
    usage: Usage | None
    estimated: bool
    hold_picousd: int | None
    # None if nothing was reserved, or if the cost is not known yet.
    cost_picousd: int | None
    # "held", "settled", "released" or "unsettled"; "none" if nothing was reserved; "dropped" if it
    # was resolved and only its month's export has the details.
    settlement: str
    # Why the cost is not known.
    unsettled_reason: str | None
    backend: str | None
    replica: str | None
    # The backend's unchanged report, and its own price.
    reported_usage: FreeObject | None
    reported_cost_picousd: int | None
    verdicts: tuple[VerdictRecord, ...]
    # None if the call was not dispatched.
    dispatched_ms: int | None = None
    upstream_ms: int | None = None
    overhead_us: int | None = None
    # More than one for rejections that a key repeated; the record is that of the last one.
    requests: int = 1


@dataclass(frozen=True, slots=True)
class Position:
    """Marks the end of a page: the next one begins with older records."""

    started_at_ms: int
    request_id: UUID


@dataclass(frozen=True, slots=True)
class RareFilter:
    """Contains filters that are not columns of the roll-ups."""

    policy_id: str | None = None
    matched_only: bool = False
    cost_picousd_min: int | None = None

    def __bool__(self) -> bool:
        return self.policy_id is not None or self.cost_picousd_min is not None


# The possible parts of an alert's subject, in the order of display.
_SUBJECT_PARTS = ("organization_id", "project_id", "key_id", "period", "backend", "gateway")


@dataclass(frozen=True, slots=True)
class StandingAlert:
    """Shows a raised alert to an operator."""

    kind: AlertKind
    level: int
    subject: Mapping[str, str]
    detail: str
    raised_at: int

    def about(self, names: Mapping[str, str]) -> str:
        """Describes the subject for people: with names instead of ids, owners first."""
        parts = sorted(self.subject.items(), key=lambda part: _SUBJECT_PARTS.index(part[0]))
        return ", ".join(names.get(value, value) for _, value in parts)


@dataclass(frozen=True, slots=True)
class ReasonTotal:
    """Sums up the unsettled reservations with the same reason."""

    reason: str
    reservations: int
    hold_picousd: int
    # The time since the first of them became unsettled; negative if the clock was set back since.
    oldest_age_s: int


class ReservationStatus(StrEnum):
    HELD = "held"
    UNSETTLED = "unsettled"
    SETTLED = "settled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class ReservationEntry:
    organization_id: OrganizationId
    id: UUID
    project_id: ProjectId
    key_id: KeyId
    model: str
    hold_picousd: int
    held_at: int
    status: ReservationStatus
    # Why the cost is not known; None if the reservation was never unsettled.
    reason: str | None
    # The cost with overage; None before the reservation is resolved.
    cost_picousd: int | None
    resolved_by: str | None


@dataclass(frozen=True, slots=True)
class HoldTerms:
    """Contains the prices and limits that a hold was computed from."""

    # By the names of price dimensions.
    prices: dict[str, int]
    held_at_ms: int
    hold_picousd: int
    prompt_tokens_max: int
    choices: int
    output_tokens_max: int
    images: int
    web_searches: int
    input_audio_tokens_max: int
    output_audio_tokens_max: int
    price_verdict: int
    verdicts_max: int


@dataclass(frozen=True, slots=True)
class UnsettledMark:
    reason: str
    marked_at_ms: int


@dataclass(frozen=True, slots=True)
class ResolutionEntry:
    # By line item.
    cost_by_dimension: dict[str, int]
    kind: str
    resolved_at_ms: int
    resolved_by: str
    settled_picousd: int
    released_picousd: int
    overage_picousd: int
    estimated: bool


@dataclass(frozen=True, slots=True)
class CallLedger:
    hold: HoldTerms
    mark: UnsettledMark | None
    resolution: ResolutionEntry | None
