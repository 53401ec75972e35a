"""Calls over time: what reports count, and percentiles of their latencies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId

# A step of the roll-ups in seconds, and the ratio of two neighbouring rungs of the latencies.
STEP_S = 300
STEPS_PER_HOUR = 12
STEPS_PER_DAY = 288
# Latencies are counted by hour for so long, and then by day.
LATENCY_HOURS_KEPT_S = 2 * 86_400
RUNG_RATIO = 1.1


@dataclass(frozen=True, slots=True)
class StatusRange:
    """HTTP statuses from `first` to `last`, both included: one status or a class like 4xx."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Unix seconds; `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TrafficFilter:
    """Which calls are meant; None filters nothing."""

    organization_id: OrganizationId | None = None
    project_id: ProjectId | None = None
    key_id: KeyId | None = None
    model: str | None = None
    status: StatusRange | None = None

    @property
    def names_a_tenant(self) -> bool:
        return (self.organization_id, self.project_id, self.key_id) != (None, None, None)


@dataclass(frozen=True, slots=True)
class StepCount:
    """The calls of one step of five minutes that had one status; in a report of days, those of the
    hour that begins with the step."""

    step: int
    status: int
    requests: int


@dataclass(frozen=True, slots=True)
class BackendTraffic:
    """Sums over the calls of one model on one replica. The backend is empty for calls that were sent
    to none, and the replica for calls that no replica answered."""

    model: str
    backend: str
    replica: str
    requests: int
    # Answered with 4xx, and with 5xx.
    client_errors: int
    failures: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    duration_ms: int
    first_pieces: int
    first_piece_ms: int
    streamed_tokens: int
    streaming_ms: int


@dataclass(frozen=True, slots=True)
class LatencyCount:
    model: str
    backend: str
    measure: str
    rung: int
    requests: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """How many calls took up to how long, by rung."""

    by_rung: Mapping[int, int] = field(default_factory=dict)

    def percentile_ms(self, share: float) -> float | None:
        """Return a time that this share of the calls did not exceed: the upper limit of the rung
        of the last of them, at most a tenth too high. In microseconds if the rungs are those of
        the overhead; None if there are no calls."""
        wanted = share * sum(self.by_rung.values())
        for rung in sorted(self.by_rung):
            wanted -= self.by_rung[rung]
            if wanted <= 0:
                return math.pow(RUNG_RATIO, rung)
        return None
