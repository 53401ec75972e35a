"""Reports how often policies gave a verdict (a result for one text) and how often they matched. The
numbers come from the verdict roll-up: sums that are updated when verdicts are written."""

from dataclasses import dataclass

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.policy import JudgeFormat
from tollkeeper.domain.reports import DAY_S, DayRange
from tollkeeper.services.clock import Clock
from tollkeeper.services.policies.drift import Drift, drift_of
from tollkeeper.storage import drift, sums
from tollkeeper.storage.database import Database

_DAYS_MAX = 366


@dataclass(frozen=True, slots=True)
class VerdictsOfDay:
    day: int
    asked: int
    matched: int
    # The number of verdicts without a probability.
    unanswered: int


@dataclass(frozen=True, slots=True)
class ProbabilityCount:
    probability_basis_points: int
    asked: int


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """Contains the verdict counts of one policy for a number of days. `by_day` contains every day,
    even a day without a verdict."""

    by_day: tuple[VerdictsOfDay, ...]
    by_probability: tuple[ProbabilityCount, ...]


class PolicyStatistics:
    def __init__(self, database: Database, clock: Clock, judge: JudgeFormat | None) -> None:
        """`judge` identifies the judge (the model that answers policy questions) for
        `policy_drift`. `judge` is None if no judge is configured, or if a first judge decides some
        questions before the main judge is asked: values of two judges cannot be compared."""
        self._judge = judge
        self._database = database
        self._clock = clock

    async def policy_report(
        self, organization_id: OrganizationId, policy_id: str, *, days: int
    ) -> PolicyReport:
        """Returns the report for the last `days` days, including today."""
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
        """Returns, by policy id, the number of verdicts in the last `days` days and the number of
        matches among them."""
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
        """Returns how far the policy's values (calibrated probabilities) have moved since its
        calibration. Returns None if the policy has no calibration for this judge, or if `judge` is
        None."""
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
