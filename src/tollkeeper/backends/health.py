"""Decides whether a replica may be called, from how its calls went. Pure: callers pass the time.

A caller may be the cause of a failure, so failures count by organization, and the last healthy
replica of a backend is never ejected.

HEALTHY --(failures in a row)--> EJECTED --(ejection over, one call tries)--> PROBING
   ^                                ^                                            |
   |                                +-------(it failed: ejected twice as long)---+
   +-----------------------------------(it answered)-----------------------------+
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

# The maximum number of organizations that a replica or a backend remembers. More are not needed to
# tell whether only one of them has failures.
_REMEMBERED_MAX = 64
_RECENT_S = 60.0


class ReplicaState(StrEnum):
    HEALTHY = "healthy"
    # Only shown: the replica fails, but is called because its backend has no healthy one.
    FAILING = "failing"
    EJECTED = "ejected"
    PROBING = "probing"


class AttemptKind(StrEnum):
    """Tells why a call was admitted: the replica is healthy, or this call probes it."""

    NORMAL = "normal"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class EjectionRule:
    failures_to_eject: int
    ejection_s: float
    ejection_s_max: float
    # The number of organizations that the failures must come from, if that many use the backend.
    organizations_to_eject: int = 1


class ReplicaHealth:
    """Holds the state of one replica. Every started attempt is ended by exactly one call of
    `succeeded`, `failed` or `abandoned`."""

    __slots__ = (
        "_backoff_s",
        "_failed_for",
        "_failures",
        "_rule",
        "ejected_until",
        "is_kept",
        "last_failure",
        "state",
    )

    def __init__(self, rule: EjectionRule) -> None:
        self._rule = rule
        self._failures = 0
        # The organizations whose calls failed since the last success.
        self._failed_for: set[Hashable] = set()
        self._backoff_s = rule.ejection_s
        self.state = ReplicaState.HEALTHY
        self.ejected_until = 0.0
        # Why the last call failed; empty after a successful one.
        self.last_failure = ""
        # Whether it would be ejected if another replica were healthy.
        self.is_kept = False

    @property
    def shown_state(self) -> ReplicaState:
        """Returns the state for metrics, alerts and the console."""
        return ReplicaState.FAILING if self.is_kept else self.state

    def admits(self, now: float) -> bool:
        return self.state is ReplicaState.HEALTHY or now >= self.ejected_until

    def begin(self, now: float) -> AttemptKind:
        """Admits one call. Only valid right after `admits` returned True."""
        if self.state is ReplicaState.HEALTHY:
            return AttemptKind.NORMAL
        assert self.admits(now), "one probe at a time"
        self.state = ReplicaState.PROBING
        # A probe may be a long call, or hang. After the time of an ejection another call may probe,
        # so that a recovered replica does not stay ejected until this one ends.
        self.ejected_until = now + self._backoff_s
        return AttemptKind.PROBE

    def succeeded(self, kind: AttemptKind) -> None:
        """Records an answer of the replica. A refusal of the request is an answer too."""
        if kind is AttemptKind.PROBE and self.state is not ReplicaState.HEALTHY:
            self.state = ReplicaState.HEALTHY
            self._backoff_s = self._rule.ejection_s
        if self.state is ReplicaState.HEALTHY:
            self._forget_failures()
            self.last_failure = ""
            self.is_kept = False

    def failed(
        self,
        kind: AttemptKind,
        now: float,
        organization: Hashable = None,
        *,
        organizations_active: int = 1,
        is_last_healthy: bool = False,
        reason: str = "",
    ) -> None:
        """Records a failure. `organizations_active` currently use the backend: a single
        organization can only affect its own calls."""
        self.last_failure = reason
        if self.state is ReplicaState.HEALTHY:
            self._failures += 1
            if len(self._failed_for) < _REMEMBERED_MAX:
                self._failed_for.add(organization)
            rule = self._rule
            needed = min(rule.organizations_to_eject, rule.failures_to_eject, organizations_active)
            if self._failures >= rule.failures_to_eject and len(self._failed_for) >= needed:
                self.is_kept = is_last_healthy
                if not is_last_healthy:
                    self._eject(now)
        elif kind is AttemptKind.PROBE:
            self._backoff_s = min(2 * self._backoff_s, self._rule.ejection_s_max)
            self._eject(now)
        # Calls that were in flight when the replica was ejected do not prolong the ejection.

    def abandoned(self, kind: AttemptKind, now: float) -> None:
        """Records a call that ended before it showed whether the replica works. The next call may
        probe."""
        if kind is AttemptKind.PROBE and self.state is ReplicaState.PROBING:
            self.state = ReplicaState.EJECTED
            self.ejected_until = now

    def _eject(self, now: float) -> None:
        self.state = ReplicaState.EJECTED
        self.ejected_until = now + self._backoff_s
        self._forget_failures()

    def _forget_failures(self) -> None:
        if self._failures:
            self._failures = 0
            self._failed_for.clear()


class RecentOrganizations:
    """Counts the organizations that have used a backend within the last minute, up to a limit."""

    def __init__(self) -> None:
        self._seen_at: OrderedDict[Hashable, float] = OrderedDict()

    def seen(self, organization: Hashable, now: float) -> None:
        self._seen_at[organization] = now
        self._seen_at.move_to_end(organization)
        if len(self._seen_at) > _REMEMBERED_MAX:
            self._seen_at.popitem(last=False)

    def count(self, now: float) -> int:
        while self._seen_at and next(iter(self._seen_at.values())) < now - _RECENT_S:
            self._seen_at.popitem(last=False)
        return len(self._seen_at)
