"""Defines counts of calls over time, and percentiles of their latencies.

A roll-up contains sums that are updated when calls are recorded, so that reports need not read
every record. Its smallest time span is a step of five minutes. Latencies are counted in buckets:
the upper limit of each bucket is a tenth higher than the upper limit of the previous bucket.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId

# The length of a step in seconds.
STEP_S = 300
STEPS_PER_HOUR = 12
STEPS_PER_DAY = 288
# Latency counts are stored by hour for this long. Older counts are stored by day.
LATENCY_HOURS_KEPT_S = 2 * 86_400
# The upper limit of a bucket, divided by the upper limit of the previous bucket.
BUCKET_RATIO = 1.1


@dataclass(frozen=True, slots=True)
class StatusRange:
    """Represents one HTTP status, or a class like 4xx. `first` and `last` are inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Represents a time range in Unix seconds; `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TrafficFilter:
    """Selects calls. A field that is None does not restrict the selection."""

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
    """Counts the calls with one HTTP status in one step (a number of steps since 1970) or, in a
    report about several days, in the hour that begins with this step."""

    step: int
    status: int
    requests: int


@dataclass(frozen=True, slots=True)
class BackendTraffic:
    """Contains sums over the calls of one model on one replica. `backend` is empty for calls that
    were not sent to a backend, and `replica` is empty for calls that no replica answered."""

    model: str
    backend: str
    replica: str
    requests: int
    # The calls answered with a 4xx status, and those answered with a 5xx status.
    client_errors: int
    failures: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    duration_ms: int
    # The calls with a measured time to the first piece (stream event), and the sum of these times.
    first_pieces: int
    first_piece_ms: int
    # For streamed answers: the completion tokens, and the time from the first piece to the end.
    streamed_tokens: int
    streaming_ms: int


@dataclass(frozen=True, slots=True)
class LatencyCount:
    model: str
    backend: str
    measure: str
    # The times in a bucket are at most BUCKET_RATIO ** bucket milliseconds. For the measure
    # "overhead", the unit is microseconds.
    bucket: int
    requests: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """Counts calls by latency bucket."""

    by_bucket: Mapping[int, int] = field(default_factory=dict)

    def percentile(self, share: float) -> float | None:
        """Returns the time that this share of the calls did not exceed, or None if there are no
        calls. The result is the upper limit of a bucket, so it is at most a tenth too high. The
        unit is milliseconds, or microseconds for the measure "overhead"."""
        target = share * sum(self.by_bucket.values())
        for bucket in sorted(self.by_bucket):
            target -= self.by_bucket[bucket]
            if target <= 0:
                return math.pow(BUCKET_RATIO, bucket)
        return None
