"""Declares what operators do with caps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.actions.action import WORK, Action
from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.money.caps.rule import CapPeriod

if TYPE_CHECKING:
    from tollkeeper.money.caps.rule import CapUse
    from tollkeeper.setup.services import Services


async def _set(
    services: Services,
    organization_id: OrganizationId,
    amount_picousd: int,
    period: CapPeriod,
    project_id: ProjectId | None = None,
    key_id: KeyId | None = None,
) -> CapUse:
    return await services.caps.cap_set(organization_id, amount_picousd, period, project_id, key_id)


async def _clear(
    services: Services,
    organization_id: OrganizationId,
    period: CapPeriod | None,
    project_id: ProjectId | None = None,
    key_id: KeyId | None = None,
) -> None:
    await services.caps.cap_clear(organization_id, project_id, key_id, period)


# Without a project and a key, the caps are the organization's own.
CAP_SET = Action(WORK, _set, lambda _: "The cap is set.")
CAP_CLEAR = Action(WORK, _clear, lambda _: "The cap was removed.")
