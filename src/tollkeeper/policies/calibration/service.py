"""Stores calibrations of policies. An operator decides which one is active."""

from dataclasses import replace
from typing import Any

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import NotFound, StateConflict
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.database import Connection, Database
from tollkeeper.policies import store as policies
from tollkeeper.policies.calibration import store as calibrations
from tollkeeper.policies.calibration.rule import Fitted, is_monotone
from tollkeeper.policies.policy import JudgeFormat, Policy, StoredCalibration
from tollkeeper.tenants.audit.service import record_change

CALIBRATIONS_MAX = 100


class Calibrations:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def calibration_create(
        self,
        organization_id: OrganizationId,
        policy_id: str,
        rule: str,
        judge: JudgeFormat,
        fitted: Fitted,
        report: dict[str, Any],
    ) -> StoredCalibration:
        """It has no effect until an operator activates it."""
        assert is_monotone(fitted.calibration)
        async with self._database.transaction() as connection:
            await _find_and_lock(connection, organization_id, policy_id)
            existing = await calibrations.find_all(connection, organization_id, policy_id)
            if len(existing) >= CALIBRATIONS_MAX:
                raise StateConflict(f"The policy has {CALIBRATIONS_MAX} calibrations already.")
            number = existing[0].number + 1 if existing else 1
            stored = StoredCalibration(
                number, judge, rule, fitted.calibration, self._clock(), report
            )
            await calibrations.insert(connection, organization_id, policy_id, stored)
            await record_change(
                connection,
                organization_id,
                "calibration_create",
                "policy",
                policy_id,
                after={"calibration": number, "report": report},
            )
        return stored

    async def calibration_list(
        self, organization_id: OrganizationId, policy_id: str
    ) -> list[StoredCalibration]:
        """Newest first."""
        async with self._database.autocommit() as connection:
            return await calibrations.find_all(connection, organization_id, policy_id)

    async def calibration_activate(
        self, organization_id: OrganizationId, policy_id: str, number: int | None
    ) -> Policy:
        """For all calls admitted from now on. None deactivates the current one."""
        async with self._database.transaction() as connection:
            before = await _find_and_lock(connection, organization_id, policy_id)
            existing = await calibrations.find_all(connection, organization_id, policy_id)
            chosen = next((stored for stored in existing if stored.number == number), None)
            if number is not None and chosen is None:
                raise NotFound(f"The policy has no calibration {number}.")
            question = before.current_rule.rule
            if chosen is not None and chosen.rule != question:
                raise StateConflict(
                    f"Calibration {number} belongs to another rule: {chosen.rule!r}. Calibrate the "
                    "published rule, or the draft if no version is published."
                )
            await calibrations.activate(
                connection, organization_id, policy_id, number, self._clock()
            )
            await policies.increment_epoch(connection, organization_id)
            await record_change(
                connection,
                organization_id,
                "calibration_activate",
                "policy",
                policy_id,
                before={"calibration": _number(before.calibration)},
                after={"calibration": number},
            )
        return replace(before, calibration=chosen)


def _number(stored: StoredCalibration | None) -> int | None:
    return None if stored is None else stored.number


async def _find_and_lock(
    connection: Connection, organization_id: OrganizationId, policy_id: str
) -> Policy:
    policy = await policies.find_and_lock(connection, organization_id, policy_id)
    if policy is None:
        raise NotFound("There is no such policy.", param="policy_id")
    return policy
