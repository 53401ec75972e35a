"""Declares what operators do with project keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tollkeeper.actions.action import WORK_OWN, Action
from tollkeeper.core.access import ProjectId

if TYPE_CHECKING:
    from tollkeeper.actions.own_services import AnyServices
    from tollkeeper.tenants.organization import ProjectKey


async def _create(
    services: AnyServices,
    project_id: ProjectId,
    name: str,
    permissions: Sequence[str] | None,
    expires_in_s: int | None,
) -> tuple[ProjectKey, str]:
    """Returns the key and its value. Without permissions, the key gets the default permissions."""
    return await services.project_keys.project_key_create_by_operator(
        project_id, name, permissions or None, expires_in_s
    )


PROJECT_KEY_CREATE = Action(WORK_OWN, _create, lambda _: "The key was created.")
