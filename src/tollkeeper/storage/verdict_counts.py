"""Contains the SQL that reads the roll-up (stored sums) of verdicts (the results of policies). The
roll-up counts how often a policy was asked, and how often it matched."""

from dataclasses import dataclass

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.reports import DayRange
from tollkeeper.storage.database import Connection


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


async def count_of_policy(
    connection: Connection, organization_id: OrganizationId, policy_id: str, days: DayRange
) -> tuple[list[VerdictsOfDay], list[ProbabilityCount]]:
    """Returns the counts by day, and the counts by probability in ascending order. The counts by
    probability omit verdicts without a probability. Reads the rows only once."""
    cursor = await connection.execute(
        """
        SELECT day, probability_basis_points, sum(asked)::bigint, sum(matched)::bigint,
            coalesce(sum(asked) FILTER (WHERE probability_basis_points < 0), 0)::bigint
        FROM verdict_counts WHERE organization_id = %s AND policy_id = %s AND day >= %s AND day < %s
        GROUP BY GROUPING SETS ((day), (probability_basis_points))
        ORDER BY day, probability_basis_points
        """,
        (organization_id, policy_id, days.first, days.end),
    )
    by_day: list[VerdictsOfDay] = []
    by_probability: list[ProbabilityCount] = []
    for day, probability, asked, matched, unanswered in await cursor.fetchall():
        if day is not None:
            by_day.append(VerdictsOfDay(day, asked, matched, unanswered))
        elif probability >= 0:
            by_probability.append(ProbabilityCount(probability, asked))
    return by_day, by_probability


async def count_by_policy(
    connection: Connection, organization_id: OrganizationId, days: DayRange
) -> dict[str, tuple[int, int]]:
    """Returns, by policy id, how often each policy of the organization was asked, and how often it
    matched."""
    cursor = await connection.execute(
        """
        SELECT policy_id, sum(asked)::bigint, sum(matched)::bigint FROM verdict_counts
        WHERE organization_id = %s AND day >= %s AND day < %s GROUP BY policy_id
        """,
        (organization_id, days.first, days.end),
    )
    return {row[0]: (row[1], row[2]) for row in await cursor.fetchall()}
