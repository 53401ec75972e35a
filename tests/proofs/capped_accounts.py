"""Adds caps to the accounts of seeded histories."""

import random
from collections.abc import Sequence

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.money.caps.rule import CapKey, CapPeriod, CapSubject


def random_caps(
    rng: random.Random,
    organization_id: OrganizationId,
    tenants: Sequence[tuple[OrganizationId, ProjectId, KeyId]],
) -> tuple[dict[CapKey, int], dict[KeyId, KeyId]]:
    """Returns random caps of the organization in half of the cases, and otherwise none. Also returns
    its first keys: one key may be the result of another key's rotation."""
    if rng.random() < 0.5:
        return {}, {}
    mine = [tenant for tenant in tenants if tenant[0] == organization_id]
    owners: list[CapSubject] = [None]
    for _, project_id, key_id in mine:
        owners += [project_id, key_id]
    caps: dict[CapKey, int] = {
        (owner, period): rng.randrange(5, 50)
        for owner in owners
        for period in CapPeriod
        if rng.random() < 0.3
    }
    is_rotated = len(mine) > 1 and rng.random() < 0.5
    return caps, {mine[1][2]: mine[0][2]} if is_rotated else {}
