"""Decides from the results of earlier calls whether a replica (one address of a backend) may be
called. The functions get the time as an argument and do no I/O.

A replica that fails several times is ejected: it is not called for a while. Then one call, the
probe, shows whether the replica works again. A client can provoke failures, so failures of a single
organization do not eject a replica that several organizations use. The last healthy replica of a
backend is never ejected.

HEALTHY --(several failures in a row)--> EJECTED --(time is over, a call probes)--> PROBING
   ^                                        ^                                          |
   |                                        +-(probe failed: ejected twice as long)----+
   +-------------------------------------------(probe was answered)--------------------+
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

# The maximum number of organizations that a replica or a backend remembers. The rules compare the
# number of organizations only with small numbers, so more are not needed.
_REMEMBERED_MAX = 64
# An organization counts as a user of a backend for this time after its last call.
_RECENT_S = 60.0


class ReplicaState(StrEnum):
    HEALTHY = "healthy"
    # The replica fails, but is still called, because its backend has no other healthy replica. This
    # state is only for display: `ReplicaHealth.state` is HEALTHY.
    FAILING = "failing"
    EJECTED = "ejected"
    PROBING = "probing"


class AttemptKind(StrEnum):
    """Tells why a call was admitted: the replica is healthy, or the call probes an ejected
    replica."""

    NORMAL = "normal"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class EjectionRule:
    """Contains the settings for ejections (see `BackendConfig`)."""

    failures_to_eject: int
    ejection_s: float
    ejection_s_max: float
    # A replica is ejected only if calls of at least this many organizations failed. If fewer
    # organizations use the backend, calls of all these organizations must have failed.
    organizations_to_eject: int = 1


class ReplicaHealth:
    """Holds the state of one replica. The caller reports the result of each call to the replica with
    `succeeded`, `failed` or `abandoned`. Only an abandoned call that is not a probe may stay
    unreported."""

    def __init__(self, rule: EjectionRule) -> None:
        self._rule = rule
        # The number of failures since the last success or ejection.
        self._failures = 0
        # The organizations whose calls failed since the last success.
        self._failed_for: set[Hashable] = set()
        self._backoff_s = rule.ejection_s
        self.state = ReplicaState.HEALTHY
        self.ejected_until = 0.0
        # The reason why the last call failed. Empty after a successful call.
        self.last_failure = ""
        # Whether the last call that counts was successful. A further success then changes nothing.
        self.is_sound = True
        # Whether the replica stays in use only because it is the last healthy replica of its backend.
        self.is_failing = False

    @property
    def shown_state(self) -> ReplicaState:
        """Returns the state for metrics, alerts and the console."""
        return ReplicaState.FAILING if self.is_failing else self.state

    def admits(self, now: float) -> bool:
        return self.state is ReplicaState.HEALTHY or now >= self.ejected_until

    def begin(self, now: float) -> AttemptKind:
        """Records the start of a call. May only be called right after `admits` returned True."""
        if self.state is ReplicaState.HEALTHY:
            return AttemptKind.NORMAL
        assert self.admits(now), "the replica must admit a call"
        self.state = ReplicaState.PROBING
        # A probe may take long, or hang. So another call may probe after the duration of one
        # ejection. Otherwise a recovered replica would stay ejected until the first probe ends.
        self.ejected_until = now + self._backoff_s
        return AttemptKind.PROBE

    def succeeded(self, kind: AttemptKind) -> None:
        """Records that the replica answered. A refusal of the request counts as an answer too."""
        if kind is AttemptKind.PROBE and self.state is not ReplicaState.HEALTHY:
            self.state = ReplicaState.HEALTHY
            self._backoff_s = self._rule.ejection_s
        if self.state is ReplicaState.HEALTHY:
            self._forget_failures()
            self.last_failure = ""
            self.is_failing = False
            self.is_sound = True

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
        """Records a failed call of the organization. A failed probe ejects the replica again. A healthy
        replica is ejected if enough calls of enough organizations have failed (see `EjectionRule`),
        unless `is_last_healthy` is True. `organizations_active` is the number of organizations that
        currently use the backend."""
        self.last_failure = reason
        self.is_sound = False
        if self.state is ReplicaState.HEALTHY:
            self._failures += 1
            if len(self._failed_for) < _REMEMBERED_MAX:
                self._failed_for.add(organization)
            rule = self._rule
            # The number of organizations whose calls must have failed.
            needed = min(rule.organizations_to_eject, rule.failures_to_eject, organizations_active)
            if self._failures >= rule.failures_to_eject and len(self._failed_for) >= needed:
                self.is_failing = is_last_healthy
                if not is_last_healthy:
                    self._eject(now)
        elif kind is AttemptKind.PROBE:
            self._backoff_s = min(2 * self._backoff_s, self._rule.ejection_s_max)
            self._eject(now)
        # In all other cases the call began before the replica was ejected. The failure of such a
        # call does not prolong the ejection.

    def abandoned(self, kind: AttemptKind, now: float) -> None:
        """Records a call that ended before it was known whether the replica works. If the call was
        a probe, the next call may probe at once."""
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
        self._seen_at: dict[Hashable, float] = {}

    def seen(self, organization: Hashable, now: float) -> None:
        self._seen_at[organization] = now
        if len(self._seen_at) > _REMEMBERED_MAX:
            # The organization that was added first. If it is still active, its next call adds it again.
            del self._seen_at[next(iter(self._seen_at))]

    def count(self, now: float) -> int:
        return sum(seen_at >= now - _RECENT_S for seen_at in self._seen_at.values())
