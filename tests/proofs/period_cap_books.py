"""Adds caps by day, week and month to the accounts of seeded histories."""

import random
from collections.abc import Sequence

from msgspec.structs import replace

from tests.proofs.memory_store import START_US
from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.admission import AccountState
from tollkeeper.domain.caps import (
    COUNTED_PERIODS,
    CapSubject,
    PeriodCap,
    day_at,
    period_number,
)


def with_period_caps(
    rng: random.Random,
    organization_id: OrganizationId,
    tenants: Sequence[tuple[OrganizationId, ProjectId, KeyId]],
    state: AccountState,
) -> AccountState:
    """Returns the account with random period caps in half of the cases, otherwise unchanged. One key may
    be the result of another key's rotation."""
    if rng.random() < 0.5:
        return state
    mine = [tenant for tenant in tenants if tenant[0] == organization_id]
    owners: list[CapSubject] = [None]
    for _, project_id, key_id in mine:
        owners += [project_id, key_id]
    day = day_at(START_US) - rng.randrange(2)
    caps = {
        (owner, period): PeriodCap(rng.randrange(5, 50), period_number(period, day))
        for owner in owners
        for period in COUNTED_PERIODS
        if rng.random() < 0.3
    }
    first_keys = {}
    if len(mine) > 1 and rng.random() < 0.5:
        first_keys = {mine[1][2]: mine[0][2]}
    return replace(state, spending_day=day, period_caps=caps, first_keys=first_keys)
