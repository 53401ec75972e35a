"""Reads from the verdict roll-up how often policies were asked and matched."""

from dataclasses import dataclass

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.policy import JudgeFormat
from tollkeeper.domain.reports import DAY_S, DayRange
from tollkeeper.services.clock import Clock
from tollkeeper.services.policies.drift import Drift, drift_of
from tollkeeper.storage import drift, verdict_counts
from tollkeeper.storage.database import Database
from tollkeeper.storage.verdict_counts import ProbabilityCount, VerdictsOfDay

_DAYS_MAX = 366


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """Reports one policy over some days. `by_day` has every day, even those without a verdict."""

    by_day: tuple[VerdictsOfDay, ...]
    by_probability: tuple[ProbabilityCount, ...]


class PolicyStatistics:
    def __init__(self, database: Database, clock: Clock, judge: JudgeFormat | None) -> None:
        """`judge` is the judge whose values can be compared with those at calibration; None if
        there is none, or if a first judge settles some questions before it."""
        self._judge = judge
        self._database = database
        self._clock = clock

    async def policy_report(
        self, organization_id: OrganizationId, policy_id: str, *, days: int
    ) -> PolicyReport:
        """Reports the last days, including today."""
        day_range = self._last(days)
        async with self._database.reading() as connection:
            found, by_probability = await verdict_counts.count_of_policy(
                connection, organization_id, policy_id, day_range
            )
        known = {one.day: one for one in found}
        return PolicyReport(
            by_day=tuple(
                known.get(day, VerdictsOfDay(day, 0, 0, 0))
                for day in range(day_range.first, day_range.last)
            ),
            by_probability=tuple(by_probability),
        )

    async def policy_counts(
        self, organization_id: OrganizationId, *, days: int
    ) -> dict[str, tuple[int, int]]:
        """Returns how often each policy was asked and matched in the last days."""
        async with self._database.reading() as connection:
            return await verdict_counts.count_by_policy(
                connection, organization_id, self._last(days)
            )

    async def policy_drift(self, organization_id: OrganizationId, policy_id: str) -> Drift | None:
        """Returns None if no calibration applies to the policy."""
        if self._judge is None:
            return None
        async with self._database.reading(organization_id) as connection:
            found = await drift.find_of_policy(connection, organization_id, policy_id, self._judge)
        return None if found is None else drift_of(found)

    def _last(self, days: int) -> DayRange:
        if not 1 <= days <= _DAYS_MAX:
            raise InvalidRequest(f"A report covers 1 to {_DAYS_MAX} days.", param="days")
        today = self._clock() // DAY_S
        return DayRange(first=today - days + 1, last=today + 1)
