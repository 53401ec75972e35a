"""Locks an organization's account for a change by an operator or a payment, or to fold resolutions
into it."""

from collections.abc import Sequence
from uuid import UUID

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.admission import AccountState, DefaultLimits, decide
from tollkeeper.domain.errors import NotFound
from tollkeeper.domain.ledger import LockedAccounts
from tollkeeper.services.ledger.overage_alerts import report_stopped
from tollkeeper.storage import ledger
from tollkeeper.storage.database import Connection

# No project has this id. It is used to lock an account without reading a project.
_NO_PROJECT = ProjectId(UUID(int=0))


async def lock_and_fold_account(
    connection: Connection,
    limits: DefaultLimits,
    organization_id: OrganizationId,
    project_id: ProjectId | None = None,
    keys: Sequence[KeyId] = (),
) -> LockedAccounts:
    """Locks the account, brings its state up to date, writes the state and returns it. The update
    folds resolutions. Raises NotFound if the account or the project does not exist."""
    locked = await ledger.lock_accounts(
        connection, [(organization_id, project_id or _NO_PROJECT)], keys, limits
    )
    stored_state = locked.states.get(organization_id)
    if stored_state is None:
        raise no_organization(organization_id)
    if project_id is not None and project_id not in stored_state.projects:
        raise NotFound(f"There is no project {project_id} in this organization.")
    # Without requests, `decide` only brings the state up to date.
    state, _ = decide(stored_state, (), now_us=locked.now_us)
    states: dict[OrganizationId, AccountState] = {organization_id: state}
    await ledger.write_states(connection, states)
    report_stopped(locked.states, states)
    return LockedAccounts(states, locked.epochs, locked.now_us)


def no_organization(organization_id: OrganizationId) -> NotFound:
    return NotFound(f"There is no organization {organization_id}.")
