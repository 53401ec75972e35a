"""What operators see of balances, caps, calls and alerts."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.activity import VerdictRecord
from tollkeeper.core.prompt import FreeObject
from tollkeeper.core.usage import Usage


@dataclass(frozen=True, slots=True)
class Balance:
    """`settled_picousd` includes overage. `granted_picousd` is the sum of the other four."""

    granted_picousd: int
    available_picousd: int
    held_picousd: int
    settled_picousd: int
    unsettled_picousd: int


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
