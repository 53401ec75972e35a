"""Locks an account for an operator's change or a payment, or to fold resolutions."""

from collections.abc import Sequence
from uuid import UUID

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.errors import NotFound
from tollkeeper.database.database import Connection
from tollkeeper.money.holds import statements as ledger
from tollkeeper.money.holds.rule import AccountState, DefaultLimits, decide
from tollkeeper.money.holds.values import LockedAccounts
from tollkeeper.money.overage.alerts import report_stopped

# No project has this id: locks an account without reading a project.
_NO_PROJECT = ProjectId(UUID(int=0))


async def lock_and_fold_account(
    connection: Connection,
    limits: DefaultLimits,
    organization_id: OrganizationId,
    project_id: ProjectId | None = None,
    keys: Sequence[KeyId] = (),
) -> LockedAccounts:
    """Folds resolutions, writes the state and returns it. NotFound if account or project don't
    exist."""
    locked = await ledger.lock_accounts(
        connection, [(organization_id, project_id or _NO_PROJECT)], keys, limits
    )
    stored_state = locked.states.get(organization_id)
    if stored_state is None:
        raise no_organization(organization_id)
    if project_id is not None and project_id not in stored_state.projects:
        raise NotFound(f"There is no project {project_id} in this organization.")
    # Without requests, this only brings the state up to date.
    state, _ = decide(stored_state, (), now_us=locked.now_us)
    states: dict[OrganizationId, AccountState] = {organization_id: state}
    await ledger.write_states(connection, states)
    report_stopped(locked.states, states)
    return LockedAccounts(states, locked.epochs, locked.now_us)


def no_organization(organization_id: OrganizationId) -> NotFound:
    return NotFound(f"There is no organization {organization_id}.")
