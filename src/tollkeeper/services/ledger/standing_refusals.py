"""Remembers for a short time which projects have used up their request rate.

A project's token bucket stays empty until its next refill. A request before the refill is rejected
without reading its body and without the database. A refusal is remembered for one second at most,
so that a higher limit takes effect within that second.
"""

import time

from tollkeeper.domain.access import ProjectId
from tollkeeper.domain.admission import Decision

_REMEMBERED_S_MAX = 1.0
_PROJECTS_MAX = 10_000


class StandingRefusals:
    def __init__(self) -> None:
        self._refusals: dict[ProjectId, tuple[float, Decision]] = {}

    def note(self, project_id: ProjectId, decision: Decision) -> None:
        # `wait_us` is 0 if the rate limit was not the reason for the refusal.
        if decision.wait_us:
            if len(self._refusals) >= _PROJECTS_MAX:
                self._refusals.clear()
            until = time.monotonic() + min(decision.wait_us / 1e6, _REMEMBERED_S_MAX)
            self._refusals[project_id] = (until, decision)

    def standing_refusal(self, project_id: ProjectId) -> Decision | None:
        if not self._refusals:
            return None
        entry = self._refusals.get(project_id)
        if entry is None:
            return None
        if time.monotonic() < entry[0]:
            return entry[1]
        del self._refusals[project_id]
        return None
