"""How holds are made: the one transaction that decides on money, from top to bottom."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol

from msgspec.structs import replace as replace_fields

from tollkeeper.domain.admission import UNKNOWN, AdmissionRequest, Decision, decide
from tollkeeper.domain.ledger import Hold, LockedAccounts
from tollkeeper.domain.policy_set import PolicySet
from tollkeeper.services.ledger.overage_alerts import report_stopped
from tollkeeper.services.policies.directory import PolicyDirectory
from tollkeeper.storage.database import Connection


class HoldTransaction(Protocol):
    """`storage.ledger_store` says what each method promises."""

    @property
    def connection(self) -> Connection: ...

    async def lock(self, holds: Sequence[Hold], *, lock_wait_s: float | None) -> LockedAccounts: ...

    async def write(self, accounts: LockedAccounts, admitted: Sequence[Hold]) -> None: ...


class HoldStore(Protocol):
    def hold_transaction(self) -> AbstractAsyncContextManager[HoldTransaction]: ...


async def hold_all(
    store: HoldStore,
    policies: PolicyDirectory,
    holds: Sequence[Hold],
    *,
    lock_wait_s: float | None,
) -> list[Decision]:
    """Decides on each hold, in order, and holds what is admitted. The holds are committed when this
    returns. Where it raises, nothing is held, unless the error is `CommitInDoubt`."""
    async with store.hold_transaction() as transaction:
        locked = await transaction.lock(holds, lock_wait_s=lock_wait_s)
        accounts, decisions = decide_all(locked, holds)
        # Read while the accounts are locked: no policy can change before the holds are committed.
        current = await policies.current(transaction.connection, locked.epochs)
        if any(found.active for found in current.values()):
            decisions = [
                _with_policies(decision, current[hold.organization_id])
                if decision.refusal is None
                else decision
                for hold, decision in zip(holds, decisions, strict=True)
            ]
        await transaction.write(accounts, admitted(holds, decisions))
    report_stopped(locked.states, accounts.states)
    return decisions


def admitted(holds: Sequence[Hold], decisions: Sequence[Decision]) -> list[Hold]:
    return [hold for hold, found in zip(holds, decisions, strict=True) if found.refusal is None]


def _with_policies(admission: Decision, policies: PolicySet) -> Decision:
    return replace_fields(admission, policies=policies) if policies.active else admission


def decide_all(
    locked: LockedAccounts, holds: Sequence[Hold]
) -> tuple[LockedAccounts, list[Decision]]:
    """The accounts after all decisions, and a decision for each hold. Holds of one organization are
    decided in the order of their arrival; organizations do not depend on each other."""
    # By the numbers of organizations: their hash is faster than that of an id.
    positions: dict[int, list[int]] = {}
    for position, hold in enumerate(holds):
        positions.setdefault(hold.organization_id.int, []).append(position)
    states = dict(locked.states)
    decisions = [UNKNOWN] * len(holds)
    for organization_id in locked.states:
        mine = positions[organization_id.int]
        requests = [
            AdmissionRequest(
                hold.project_id, hold.key_id, hold.hold_picousd, hold.overage_max_picousd
            )
            for hold in (holds[position] for position in mine)
        ]
        states[organization_id], decided = decide(
            states[organization_id], requests, now_us=locked.now_us, month=locked.month
        )
        for position, decision in zip(mine, decided, strict=True):
            decisions[position] = decision
    return replace(locked, states=states), decisions
