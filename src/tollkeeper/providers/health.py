"""Decides from earlier results whether a replica may be called. Gets the time as an argument, does
no I/O.

A replica that keeps failing is ejected for a while, until one call, the probe, shows whether it
works again. A client can provoke failures, so a single organization's don't eject a replica that
several use. A backend's last healthy replica is never ejected.

HEALTHY --(several failures in a row)--> EJECTED --(time is over, a call probes)--> PROBING
   ^                                        ^                                          |
   |                                        +-(probe failed: ejected twice as long)----+
   +-------------------------------------------(probe was answered)--------------------+
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

# Organizations. They're only compared with small numbers, so more aren't needed.
_REMEMBERED_MAX = 64
# How long a call makes its organization a user of the backend.
_RECENT_S = 60.0


class ReplicaState(StrEnum):
    HEALTHY = "healthy"
    # Fails, but is still called: there's no other healthy replica. Only for display.
    FAILING = "failing"
    EJECTED = "ejected"
    PROBING = "probing"


class AttemptKind(StrEnum):
    NORMAL = "normal"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class EjectionRule:
    """See `BackendConfig`."""

    failures_to_eject: int
    ejection_s: float
    ejection_s_max: float
    organizations_to_eject: int = 1


class ReplicaHealth:
    """Report each call's result: `succeeded`, `failed` or `abandoned`. Only an abandoned call
    that's no probe may stay unreported."""

    def __init__(self, rule: EjectionRule) -> None:
        self._rule = rule
        # Since the last success or ejection.
        self._failures = 0
        # Since the last success.
        self._failed_for: set[Hashable] = set()
        self._backoff_s = rule.ejection_s
        self.state = ReplicaState.HEALTHY
        self.ejected_until = 0.0
        # Empty after a success.
        self.last_failure = ""
        # The last call that counts succeeded, so another success changes nothing.
        self.is_sound = True
        # Stays in use only as the backend's last healthy replica.
        self.is_failing = False

    @property
    def shown_state(self) -> ReplicaState:
        return ReplicaState.FAILING if self.is_failing else self.state

    def admits(self, now: float) -> bool:
        return self.state is ReplicaState.HEALTHY or now >= self.ejected_until

    def begin(self, now: float) -> AttemptKind:
        """Only right after `admits` returned True."""
        if self.state is ReplicaState.HEALTHY:
            return AttemptKind.NORMAL
        assert self.admits(now), "the replica must admit a call"
        self.state = ReplicaState.PROBING
        # A probe may hang, so another may start after one ejection's time. Otherwise a
        # recovered replica would stay ejected until the first ends.
        self.ejected_until = now + self._backoff_s
        return AttemptKind.PROBE

    def succeeded(self, kind: AttemptKind) -> None:
        """A refusal of the request counts as an answer too."""
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
        """A failed probe ejects again. A healthy replica is ejected after enough failures of enough
        organizations (`EjectionRule`), but never the last. `organizations_active` now use the
        backend."""
        self.last_failure = reason
        self.is_sound = False
        if self.state is ReplicaState.HEALTHY:
            self._failures += 1
            if len(self._failed_for) < _REMEMBERED_MAX:
                self._failed_for.add(organization)
            rule = self._rule
            # Organizations whose calls must have failed.
            needed = min(rule.organizations_to_eject, rule.failures_to_eject, organizations_active)
            if self._failures >= rule.failures_to_eject and len(self._failed_for) >= needed:
                self.is_failing = is_last_healthy
                if not is_last_healthy:
                    self._eject(now)
        elif kind is AttemptKind.PROBE:
            self._backoff_s = min(2 * self._backoff_s, self._rule.ejection_s_max)
            self._eject(now)
        # Otherwise the call began before the ejection, which it doesn't prolong.

    def abandoned(self, kind: AttemptKind, now: float) -> None:
        """Ended before it showed whether the replica works. After a probe, the next call may probe
        at once."""
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
    """In the last minute, up to a limit."""

    def __init__(self) -> None:
        self._seen_at: dict[Hashable, float] = {}

    def seen(self, organization: Hashable, now: float) -> None:
        self._seen_at[organization] = now
        if len(self._seen_at) > _REMEMBERED_MAX:
            # The oldest. If it's still active, its next call adds it again.
            del self._seen_at[next(iter(self._seen_at))]

    def count(self, now: float) -> int:
        return sum(seen_at >= now - _RECENT_S for seen_at in self._seen_at.values())
