"""Decides whether a replica may be called, from how its calls went. Pure: callers pass the time.

HEALTHY --(failures in a row)--> EJECTED --(ejection over, one call tries)--> PROBING
   ^                                ^                                            |
   |                                +-------(it failed: ejected twice as long)---+
   +-----------------------------------(it answered)-----------------------------+
"""

from dataclasses import dataclass
from enum import StrEnum


class ReplicaState(StrEnum):
    HEALTHY = "healthy"
    EJECTED = "ejected"
    PROBING = "probing"


class AttemptKind(StrEnum):
    """Why a call was let through: the replica is healthy, or this call probes it."""

    NORMAL = "normal"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class EjectionRule:
    failures_to_eject: int
    ejection_s: float
    ejection_s_max: float


class ReplicaHealth:
    """The state of one replica. Every attempt that was begun is ended by exactly one call of
    `succeeded`, `failed` or `abandoned`."""

    __slots__ = ("_backoff_s", "_failures", "_rule", "ejected_until", "state")

    def __init__(self, rule: EjectionRule) -> None:
        self._rule = rule
        self._failures = 0
        self._backoff_s = rule.ejection_s
        self.state = ReplicaState.HEALTHY
        self.ejected_until = 0.0

    def admits(self, now: float) -> bool:
        return self.state is ReplicaState.HEALTHY or now >= self.ejected_until

    def begin(self, now: float) -> AttemptKind:
        """Lets one call through. Only where `admits` has just said so."""
        if self.state is ReplicaState.HEALTHY:
            return AttemptKind.NORMAL
        assert self.admits(now), "one probe at a time"
        self.state = ReplicaState.PROBING
        # A probe may be a long call, or hang. After the time of an ejection another call may
        # probe, so that a replica that has recovered does not stay ejected until this one ends.
        self.ejected_until = now + self._backoff_s
        return AttemptKind.PROBE

    def succeeded(self, kind: AttemptKind) -> None:
        """The replica answered. A refusal of the request is an answer too."""
        if kind is AttemptKind.PROBE and self.state is not ReplicaState.HEALTHY:
            self.state = ReplicaState.HEALTHY
            self._backoff_s = self._rule.ejection_s
        if self.state is ReplicaState.HEALTHY:
            self._failures = 0

    def failed(self, kind: AttemptKind, now: float) -> None:
        if self.state is ReplicaState.HEALTHY:
            self._failures += 1
            if self._failures >= self._rule.failures_to_eject:
                self._eject(now)
        elif kind is AttemptKind.PROBE:
            self._backoff_s = min(2 * self._backoff_s, self._rule.ejection_s_max)
            self._eject(now)
        # Calls that were under way when the replica was ejected do not prolong the ejection.

    def abandoned(self, kind: AttemptKind, now: float) -> None:
        """The call ended before it showed whether the replica works. The next call may probe."""
        if kind is AttemptKind.PROBE and self.state is ReplicaState.PROBING:
            self.state = ReplicaState.EJECTED
            self.ejected_until = now

    def _eject(self, now: float) -> None:
        self.state = ReplicaState.EJECTED
        self.ejected_until = now + self._backoff_s
        self._failures = 0
