"""Counts of calls over time, and percentiles of their latencies.

Roll-ups are updated as calls are recorded, so reports needn't read every record. Their smallest span is a
step of five minutes. Each latency bucket's upper limit is a tenth above the one before.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId

STEP_S = 300
STEPS_PER_HOUR = 12
STEPS_PER_DAY = 288
# By hour; older ones by day.
LATENCY_HOURS_KEPT_S = 2 * 86_400
BUCKET_RATIO = 1.1


@dataclass(frozen=True, slots=True)
class StatusRange:
    """One status, or a class like 4xx; `last` is included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Unix seconds; `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TrafficFilter:
    """None doesn't restrict."""

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
    """In one step (counted from 1970) or, in reports about several days, in the hour that begins with it."""

    step: int
    status: int
    requests: int


@dataclass(frozen=True, slots=True)
class BackendTraffic:
    """One model on one replica. `backend` is empty for calls that weren't sent, `replica` for calls that none
    answered."""

    model: str
    backend: str
    replica: str
    requests: int
    # 4xx, and 5xx.
    client_errors: int
    failures: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    duration_ms: int
    # How many calls have a time to the first piece, and its sum.
    first_pieces: int
    first_piece_ms: int
    # Of streamed answers, with the time from the first piece to the end.
    streamed_tokens: int
    streaming_ms: int


@dataclass(frozen=True, slots=True)
class LatencyCount:
    model: str
    backend: str
    measure: str
    # At most BUCKET_RATIO ** bucket milliseconds, microseconds for "overhead".
    bucket: int
    requests: int


@dataclass(frozen=True, slots=True)
class Latencies:
    by_bucket: Mapping[int, int] = field(default_factory=dict)

    def percentile(self, share: float) -> float | None:
        """The time that this share didn't exceed; None without calls. A bucket's upper limit, so at most a
        tenth too high. Milliseconds, microseconds for "overhead"."""
        target = share * sum(self.by_bucket.values())
        for bucket in sorted(self.by_bucket):
            target -= self.by_bucket[bucket]
            if target <= 0:
                return math.pow(BUCKET_RATIO, bucket)
        return None
