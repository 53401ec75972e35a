"""Reports how often policies gave a verdict and matched, from the verdict roll-up."""

from dataclasses import dataclass

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.reports import DAY_S, DayRange
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.database import Database
from tollkeeper.policies.calibration import drift_store as drift
from tollkeeper.policies.calibration.drift import Drift, drift_of
from tollkeeper.policies.policy import JudgeFormat
from tollkeeper.reports import sums

_DAYS_MAX = 366


@dataclass(frozen=True, slots=True)
class VerdictsOfDay:
    day: int
    asked: int
    matched: int
    # Without a probability.
    unanswered: int


@dataclass(frozen=True, slots=True)
class ProbabilityCount:
    probability_basis_points: int
    asked: int


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """`by_day` has every day, even those without a verdict."""

    by_day: tuple[VerdictsOfDay, ...]
    by_probability: tuple[ProbabilityCount, ...]


class PolicyStatistics:
    def __init__(self, database: Database, clock: Clock, judge: JudgeFormat | None) -> None:
        """`judge` is for `policy_drift`. It's None without a judge, or if a first judge decides
        some questions: values of two judges can't be compared."""
        self._judge = judge
        self._database = database
        self._clock = clock

    async def policy_report(
        self, organization_id: OrganizationId, policy_id: str, *, days: int
    ) -> PolicyReport:
        """Including today."""
        day_range = self._last_days(days)
        async with self._database.autocommit() as connection:
            of_policy = {"organization_id": organization_id, "policy_id": policy_id}
            by_day = await sums.read(
                *(connection, sums.VERDICTS, day_range, of_policy),
                by=("day",),
                add=("asked", "matched", "unanswered"),
            )
            by_probability = await sums.read(
                *(connection, sums.VERDICTS, day_range, of_policy),
                by=("probability_basis_points",),
                add=("asked",),
            )
        counts_by_day = {row[0]: VerdictsOfDay(*row) for row in by_day}
        return PolicyReport(
            by_day=tuple(
                counts_by_day.get(day, VerdictsOfDay(day, 0, 0, 0))
                for day in range(day_range.first, day_range.end)
            ),
            by_probability=tuple(ProbabilityCount(*row) for row in by_probability if row[0] >= 0),
        )

    async def policy_counts(
        self, organization_id: OrganizationId, *, days: int
    ) -> dict[str, tuple[int, int]]:
        """Verdicts and matches by policy id."""
        async with self._database.autocommit() as connection:
            rows = await sums.read(
                connection,
                sums.VERDICTS,
                self._last_days(days),
                {"organization_id": organization_id},
                by=("policy_id",),
                add=("asked", "matched"),
            )
        return {policy_id: (asked, matched) for policy_id, asked, matched in rows}

    async def policy_drift(self, organization_id: OrganizationId, policy_id: str) -> Drift | None:
        """How far the policy's probabilities have moved since its calibration. None if it has none
        for this judge."""
        if self._judge is None:
            return None
        async with self._database.autocommit(organization_id) as connection:
            found = await drift.find_of_policy(connection, organization_id, policy_id, self._judge)
        return None if found is None else drift_of(found)

    def _last_days(self, days: int) -> DayRange:
        if not 1 <= days <= _DAYS_MAX:
            raise InvalidRequest(f"A report covers 1 to {_DAYS_MAX} days.", param="days")
        today = self._clock() // DAY_S
        return DayRange(first=today - days + 1, end=today + 1)
