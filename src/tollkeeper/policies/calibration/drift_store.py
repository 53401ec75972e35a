"""Drift: a calibrated policy's values when it was calibrated and in the last seven days. A value is
the calibrated probability in a verdict."""

from dataclasses import dataclass
from typing import Any, LiteralString

import msgspec

from tollkeeper.core.access import OrganizationId
from tollkeeper.database.database import Connection
from tollkeeper.policies.policy import JudgeFormat

# Including today.
_RECENT_DAYS = 7


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """By tenth of the scale from 0 to 1, at the calibration and in the last seven days (`now`)."""

    organization_id: OrganizationId
    policy_id: str
    policy_name: str
    calibration: int
    at_calibration: tuple[int, ...]
    now: tuple[int, ...]


async def find_of_policy(
    connection: Connection, organization_id: OrganizationId, policy_id: str, judge: JudgeFormat
) -> ValueCounts | None:
    """None without an active calibration for this judge and the published rule."""
    parameters = _parameters(judge) | {
        "organization_id": organization_id,
        "policy_id": policy_id,
    }
    cursor = await connection.execute(_FIND_OF_POLICY, parameters)
    row = await cursor.fetchone()
    return None if row is None else _counts(row)


async def find_all(connection: Connection, judge: JudgeFormat) -> list[ValueCounts]:
    cursor = await connection.execute(_FIND_ALL, _parameters(judge))
    return [_counts(row) for row in await cursor.fetchall()]


def _parameters(judge: JudgeFormat) -> dict[str, Any]:
    return {"model": judge.model, "prompt_format": judge.prompt_format, "days": _RECENT_DAYS}


# Earlier verdicts have no calibrated values, and they're counted by day, so this begins the day
# after the activation.
_SELECT: LiteralString = """
    SELECT p.organization_id, p.id, p.name, c.number, c.report -> 'after' -> 'reliability',
        coalesce(jsonb_object_agg(n.tenth::text, n.asked) FILTER (WHERE n.tenth IS NOT NULL), '{}')
    FROM policies p
    JOIN policy_calibrations c ON c.organization_id = p.organization_id AND c.policy_id = p.id
        AND c.number = p.active_calibration
    JOIN policy_versions v ON v.organization_id = p.organization_id AND v.policy_id = p.id
        AND v.version = p.current_version AND v.rule = c.rule
    LEFT JOIN LATERAL (
        SELECT least(probability_basis_points / 1000, 9) AS tenth, sum(asked)::bigint AS asked
        FROM verdict_counts
        WHERE organization_id = p.organization_id AND policy_id = p.id
            AND probability_basis_points >= 0
            AND day > floor(extract(epoch FROM p.calibrated_at) / 86400)
            AND day > floor(extract(epoch FROM now()) / 86400) - %(days)s
        GROUP BY 1
    ) n ON true
    WHERE c.judge_model = %(model)s AND c.prompt_format = %(prompt_format)s
"""
_GROUPED: LiteralString = """
    GROUP BY p.organization_id, p.id, p.name, c.number, c.report
    ORDER BY p.organization_id, p.id
"""
_FIND_OF_POLICY: LiteralString = (
    _SELECT + "AND p.organization_id = %(organization_id)s AND p.id = %(policy_id)s" + _GROUPED
)
_FIND_ALL: LiteralString = _SELECT + _GROUPED


def _counts(row: tuple[Any, ...]) -> ValueCounts:
    organization_id, policy_id, name, number, bins, now = row
    bins, now = (_decoded(column) for column in (bins, now))
    at_calibration = tuple(0 if tenth is None else tenth["count"] for tenth in bins or [None] * 10)
    return ValueCounts(
        organization_id,
        policy_id,
        name,
        number,
        at_calibration,
        tuple(int(now.get(str(tenth), 0)) for tenth in range(len(at_calibration))),
    )


def _decoded(column: Any) -> Any:
    return msgspec.json.decode(column) if isinstance(column, str | bytes) else column
