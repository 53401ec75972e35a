"""Remembers which projects' calls this process rejects without reading their bodies and without
their accounts: for a short time, calls of a project that has used up its request rate, and calls of a
project of which too many calls were rejected for other reasons.

A project's token bucket stays empty until its next refill. Such a refusal is remembered for one second
at most, so that a higher limit takes effect within that second.
"""

import time

from tollkeeper.domain.access import ProjectId
from tollkeeper.domain.admission import Decision
from tollkeeper.domain.errors import RateLimited, TollkeeperError
from tollkeeper.services.ledger.refusals import refusal_error
from tollkeeper.services.minute_rate import NS_PER_S, MinuteRate

# If one process rejects more calls of a project per minute than this without a hold, it rejects the
# project's further calls unread. Rejected calls need this limit, because they do not count against
# the project's rate limit.
REFUSED_CALLS_PER_MINUTE = 6000
_REMEMBERED_S_MAX = 1.0
_PROJECTS_MAX = 10_000
# After this time, a refusal has no effect on further calls.
_EFFECTIVE_S_MAX = 60.0


class StandingRefusals:
    def __init__(self) -> None:
        # The time of the monotonic clock until which `find` may return an error.
        self.until = 0.0
        self._refusals: dict[ProjectId, tuple[float, Decision]] = {}
        self._refused_calls = MinuteRate(REFUSED_CALLS_PER_MINUTE)

    def note(self, project_id: ProjectId, decision: Decision) -> None:
        # `wait_us` is 0 if the rate limit was not the reason for the refusal.
        if decision.wait_us:
            if len(self._refusals) >= _PROJECTS_MAX:
                self._refusals.clear()
            now = time.monotonic()
            until = now + min(decision.wait_us / 1e6, _REMEMBERED_S_MAX)
            self._refusals[project_id] = (until, decision)
            self.until = now + _EFFECTIVE_S_MAX

    def count_refused(self, project_id: ProjectId) -> None:
        """Counts a call that was rejected before anything was held for it. The ledger's rate limit
        does not count such a call, so a client could otherwise send any number of them."""
        self._refused_calls.use(project_id)
        self.until = time.monotonic() + _EFFECTIVE_S_MAX

    def find(self, project_id: ProjectId) -> TollkeeperError | None:
        """Returns the error for the project's calls if this process remembers that the project has
        used up its rate limit, or if this process has rejected too many calls of the project for
        other reasons."""
        until, decision = self._refusals.get(project_id, (0.0, None))
        if decision is not None:
            if time.monotonic() < until:
                return refusal_error(decision)
            del self._refusals[project_id]
        wait_ns = self._refused_calls.wait_ns(project_id)
        if wait_ns:
            return RateLimited(
                f"{REFUSED_CALLS_PER_MINUTE} calls of the project were refused within a minute. "
                "Further calls are refused without being read.",
                retry_after_s=-(-wait_ns // NS_PER_S),
            )
        return None
