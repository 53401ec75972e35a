"""Whether a replica is worth calling, judged by how its calls went. Pure: the time is given.

HEALTHY --(failures in a row)--> EJECTED --(its time is over, one call tries)--> PROBING
   ^                                ^                                               |
   |                                +----------(it failed: twice the time)----------+
   +---------------------------------------(it answered)----------------------------+
"""

from dataclasses import dataclass
from enum import StrEnum


class ReplicaState(StrEnum):
    HEALTHY = "healthy"
    EJECTED = "ejected"
    PROBING = "probing"


class AttemptKind(StrEnum):
    """On what terms a call was let through."""

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
        # A probe may be a long call. After as much time as an ejection takes, another may try,
        # so that a replica that is well again does not wait for a call that hangs.
        self.ejected_until = now + self._backoff_s
        return AttemptKind.PROBE

    def succeeded(self, kind: AttemptKind) -> None:
        """The replica answered: a refusal of the request is an answer too."""
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
        # Other calls were under way when the replica was ejected: they do not prolong it.

    def abandoned(self, kind: AttemptKind, now: float) -> None:
        """The call was given up before the replica had shown anything: the next one may probe."""
        if kind is AttemptKind.PROBE and self.state is ReplicaState.PROBING:
            self.state = ReplicaState.EJECTED
            self.ejected_until = now

    def _eject(self, now: float) -> None:
        self.state = ReplicaState.EJECTED
        self.ejected_until = now + self._backoff_s
        self._failures = 0
