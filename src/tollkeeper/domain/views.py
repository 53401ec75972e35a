"""What operators see of balances, caps, calls and alerts."""

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
    """`settled_picousd` includes overage. `granted_picousd` is the sum of the other four."""

    granted_picousd: int
    available_picousd: int
    held_picousd: int
    settled_picousd: int
    unsettled_picousd: int


@dataclass(frozen=True, slots=True)
class CapUse:
    """A key's with `key_id`, a project's with `project_id`, otherwise the organization's."""

    project_id: ProjectId | None
    cap: Cap
    # Includes unsettled holds.
    held_picousd: int
    spent_picousd: int
    # The newest and the first of the rotated keys that share it.
    key_id: KeyId | None = None
    first_key_id: KeyId | None = None
    # When the next period starts (Unix seconds); None for a total cap.
    resets_at: int | None = None

    @property
    def remaining_picousd(self) -> int:
        """Negative after overage, or if the cap was set below what was spent or held."""
        return self.cap.amount_picousd - self.held_picousd - self.spent_picousd


@dataclass(frozen=True, slots=True)
class ActivityEntry:
    """The activity record and the present ledger rows. If the process died before it wrote the record, only
    the ledger's fields are set."""

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
    # None without a reservation, or if it isn't known yet.
    cost_picousd: int | None
    # "held", "settled", "released" or "unsettled"; "none" without a reservation; "dropped" if only the export
    # of its month has it.
    settlement: str
    unsettled_reason: str | None
    backend: str | None
    replica: str | None
    # Unchanged, with the price that the backend states.
    reported_usage: FreeObject | None
    reported_cost_picousd: int | None
    verdicts: tuple[VerdictRecord, ...]
    # Until it was sent, the backend's time, and the gateway's own. None if it wasn't sent.
    dispatched_ms: int | None = None
    upstream_ms: int | None = None
    overhead_us: int | None = None
    # More than one if the key repeated a rejected request; the record is about the last.
    requests: int = 1
    # With its message. A 402's has the amounts.
    error_param: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """The next page begins with the next older record."""

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
    """Records without the value come last, and the newest first among equals."""

    key: SortKey
    ascending: bool = False


@dataclass(frozen=True, slots=True)
class RareFilter:
    """Roll-ups have no columns for these. `matched_only` needs `policy_id`."""

    policy_id: str | None = None
    matched_only: bool = False
    cost_picousd_min: int | None = None

    def __bool__(self) -> bool:
        return self.policy_id is not None or self.cost_picousd_min is not None


# In the order of display.
_SUBJECT_PARTS = ("organization_id", "project_id", "key_id", "period", "backend", "gateway")


@dataclass(frozen=True, slots=True)
class StandingAlert:
    """Raised and not cleared yet."""

    kind: AlertKind
    level: int
    subject: Mapping[str, str]
    detail: str
    raised_at: int

    def about(self, names: Mapping[str, str]) -> str:
        """As text: an organization, then its project, and so on. `names` maps ids to names."""
        parts = sorted(self.subject.items(), key=lambda part: _SUBJECT_PARTS.index(part[0]))
        return ", ".join(names.get(value, value) for _, value in parts)


@dataclass(frozen=True, slots=True)
class ReasonTotal:
    reason: str
    reservations: int
    hold_picousd: int
    # Negative if the clock was set back.
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
    # None: never unsettled.
    reason: str | None
    # With overage; None before it's resolved.
    cost_picousd: int | None
    resolved_by: str | None


@dataclass(frozen=True, slots=True)
class HoldTerms:
    # In picousd.
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
    # In picousd.
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
