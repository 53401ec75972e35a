"""Calibrations turn a policy's scores into probabilities."""

from typing import Any, LiteralString

import msgspec

from tollkeeper.core.access import OrganizationId
from tollkeeper.database.database import Connection
from tollkeeper.policies.calibration.rule import Calibration
from tollkeeper.policies.policy import JudgeFormat, StoredCalibration

# Of `policy_calibrations`, with the alias `c`.
COLUMNS: LiteralString = """
    c.number, c.judge_model, c.prompt_format, c.rule, c.calibration::text,
    extract(epoch FROM c.created_at)::bigint, c.report::text
"""
_calibration_decoder = msgspec.json.Decoder(Calibration)


async def insert(
    connection: Connection,
    organization_id: OrganizationId,
    policy_id: str,
    stored: StoredCalibration,
) -> None:
    await connection.execute(
        """
        INSERT INTO policy_calibrations (organization_id, policy_id, number, judge_model,
            prompt_format, rule, calibration, report, created_at)
        VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb, %s::jsonb, to_timestamp(%s))
        """,
        (
            organization_id,
            policy_id,
            stored.number,
            stored.judge.model,
            stored.judge.prompt_format,
            stored.rule,
            msgspec.json.encode(stored.calibration).decode(),
            msgspec.json.encode(stored.report).decode(),
            stored.created_at,
        ),
    )


async def find_all(
    connection: Connection, organization_id: OrganizationId, policy_id: str
) -> list[StoredCalibration]:
    cursor = await connection.execute(
        f"""
        SELECT {COLUMNS} FROM policy_calibrations c
        WHERE c.organization_id = %s AND c.policy_id = %s ORDER BY c.number DESC
        """,
        (organization_id, policy_id),
    )
    return [stored_calibration(row) for row in await cursor.fetchall()]


async def activate(
    connection: Connection,
    organization_id: OrganizationId,
    policy_id: str,
    number: int | None,
    now: int,
) -> None:
    await connection.execute(
        """
        UPDATE policies SET active_calibration = %s, calibrated_at = to_timestamp(%s)
        WHERE organization_id = %s AND id = %s
        """,
        (number, now, organization_id, policy_id),
    )


def stored_calibration(row: tuple[Any, ...]) -> StoredCalibration:
    number, model, prompt_format, rule, calibration, created_at, report = row
    return StoredCalibration(
        number=number,
        judge=JudgeFormat(model, prompt_format),
        rule=rule,
        calibration=_calibration_decoder.decode(calibration),
        created_at=created_at,
        report=msgspec.json.decode(report),
    )
