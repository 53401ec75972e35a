"""Defines the data about balances, caps, calls and alerts that operators see.

A reservation is the stored hold of a call: its highest possible cost, reserved before the call is
sent. A reservation is resolved by a settlement (with a cost) or a release (without cost). It is
unsettled while the cost is unknown. Overage is the part of a cost that exceeds the hold.
"""

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
    """Shows an organization's money. `settled_picousd` includes overage. `granted_picousd` is the
    sum of the other four amounts."""

    granted_picousd: int
    available_picousd: int
    held_picousd: int
    settled_picousd: int
    unsettled_picousd: int


@dataclass(frozen=True, slots=True)
class CapUse:
    """Shows a cap and the amounts that count for it. The cap belongs to a key if `key_id` is set,
    otherwise to a project if `project_id` is set, and otherwise to the organization."""

    project_id: ProjectId | None
    cap: Cap
    # Includes unsettled holds.
    held_picousd: int
    spent_picousd: int
    # For the cap of a key: the newest and the first of the rotated keys that share the cap.
    key_id: KeyId | None = None
    first_key_id: KeyId | None = None
    # The start of the cap's next period, in seconds since 1970; None for a total cap.
    resets_at: int | None = None

    @property
    def remaining_picousd(self) -> int:
        """Returns the remaining amount. It is negative after overage, or if the cap was set below
        the amount already spent or held."""
        return self.cap.amount_picousd - self.held_picousd - self.spent_picousd


@dataclass(frozen=True, slots=True)
class ActivityEntry:
    """Shows a call with its activity record and its current ledger rows. If the process died before
    it wrote the activity record, all fields that are not in the ledger are None."""

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
    # None if the call has no reservation, or if the cost is not known yet.
    cost_picousd: int | None
    # "held", "settled", "released" or "unsettled"; "none" if the call has no reservation; "dropped"
    # if the ledger rows of its month were removed, so that only the month's export has the details.
    settlement: str
    # The reason why the cost is not known.
    unsettled_reason: str | None
    backend: str | None
    replica: str | None
    # The backend's unchanged usage report, and the price that the backend states.
    reported_usage: FreeObject | None
    reported_cost_picousd: int | None
    verdicts: tuple[VerdictRecord, ...]
    # The time until the call was sent, the time that the backend took, and the gateway's own time.
    # All three are None if the call was not sent to a backend.
    dispatched_ms: int | None = None
    upstream_ms: int | None = None
    overhead_us: int | None = None
    # More than one if the key repeated a rejected request; the record describes the last rejection.
    requests: int = 1
    # The field that the error names, and its message. The message of a 402 has the amounts.
    error_param: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """Identifies the last record of a page. The next page begins with the next older record."""

    started_at_ms: int
    request_id: UUID


class SortKey(StrEnum):
    TIME = "time"
    FIRST_BYTE = "first_byte"
    DURATION = "duration"
    TOKENS = "tokens"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Sort:
    """Orders activity records. Records without the value come last. Among equal values, the newest
    record comes first."""

    key: SortKey
    ascending: bool = False


@dataclass(frozen=True, slots=True)
class RareFilter:
    """Contains the rarely used filters, for which the roll-ups (stored sums) have no columns.
    `matched_only` applies only together with `policy_id`."""

    policy_id: str | None = None
    matched_only: bool = False
    cost_picousd_min: int | None = None

    def __bool__(self) -> bool:
        return self.policy_id is not None or self.cost_picousd_min is not None


# The possible keys of an alert's subject, in the order of display.
_SUBJECT_PARTS = ("organization_id", "project_id", "key_id", "period", "backend", "gateway")


@dataclass(frozen=True, slots=True)
class StandingAlert:
    """Shows an alert that was raised and not cleared yet."""

    kind: AlertKind
    level: int
    subject: Mapping[str, str]
    detail: str
    raised_at: int

    def about(self, names: Mapping[str, str]) -> str:
        """Returns the alert's subject as text: an organization, then its project, and so on. `names`
        maps ids to names."""
        parts = sorted(self.subject.items(), key=lambda part: _SUBJECT_PARTS.index(part[0]))
        return ", ".join(names.get(value, value) for _, value in parts)


@dataclass(frozen=True, slots=True)
class ReasonTotal:
    """Sums up the unsettled reservations with the same reason."""

    reason: str
    reservations: int
    hold_picousd: int
    # The time since the first of these reservations became unsettled. It is negative if the clock
    # was set back since then.
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
    # The reason why the cost was not known; None if the reservation was never unsettled.
    reason: str | None
    # The cost including overage; None before the reservation is resolved.
    cost_picousd: int | None
    resolved_by: str | None


@dataclass(frozen=True, slots=True)
class HoldTerms:
    """Contains the prices and limits from which a hold was computed."""

    # The prices in picousd, by price dimension.
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


@dataclass(frozen=True, slots=True)
class UnsettledMark:
    reason: str
    marked_at_ms: int


@dataclass(frozen=True, slots=True)
class ResolutionEntry:
    # The cost in picousd, by line item.
    cost_by_line_item: dict[str, int]
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
