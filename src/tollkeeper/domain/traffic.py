"""Defines the counts of calls over time, and percentiles of their latencies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId

# The length of a roll-up step in seconds, and the ratio of two neighbouring latency buckets.
STEP_S = 300
STEPS_PER_HOUR = 12
STEPS_PER_DAY = 288
# Latencies are counted by hour for this long, and then by day.
LATENCY_HOURS_KEPT_S = 2 * 86_400
BUCKET_RATIO = 1.1


@dataclass(frozen=True, slots=True)
class StatusRange:
    """Represents a range of HTTP statuses, inclusive: one status or a class like 4xx."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Represents a range of Unix seconds; `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TrafficFilter:
    """Selects calls; None filters nothing."""

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
    """Counts the calls with one status in one step of five minutes or, in a report of days, in the
    hour that begins with the step."""

    step: int
    status: int
    requests: int


@dataclass(frozen=True, slots=True)
class BackendTraffic:
    """Sums over the calls of one model on one replica. The backend is empty for calls that were not
    sent, and the replica for calls that no replica answered."""

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
    # Its times are at most BUCKET_RATIO ** bucket milliseconds (microseconds for the overhead).
    bucket: int
    requests: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """Counts calls by latency bucket."""

    by_bucket: Mapping[int, int] = field(default_factory=dict)

    def percentile_ms(self, share: float) -> float | None:
        """Returns a time that this share of the calls did not exceed: the upper limit of the last
        call's bucket, at most a tenth too high. In microseconds for the overhead; None if there are
        no calls."""
        target = share * sum(self.by_bucket.values())
        for bucket in sorted(self.by_bucket):
            target -= self.by_bucket[bucket]
            if target <= 0:
                return math.pow(BUCKET_RATIO, bucket)
        return None
