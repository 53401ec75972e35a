"""Caches each organization's published policies together with their epoch.

The epoch is a number in the organization's account. Every change of published policies locks the
account and raises it by a random number, and admission reads it under the same lock. So cached
policies with that epoch are current, and only a new epoch needs a read. Epoch 0 means never
published, so nothing to read.
"""

from collections import OrderedDict
from collections.abc import Mapping

from tollkeeper.core.access import OrganizationId
from tollkeeper.database.database import Connection
from tollkeeper.policies import store as policies
from tollkeeper.policies.policy import JudgeFormat
from tollkeeper.policies.policy_set import NO_POLICIES, PolicySet, PublishedPolicy, policy_set

_ORGANIZATIONS_MAX = 10_000
# One organization can have many policies, so there's a limit for all cached ones too.
_POLICIES_MAX = 200_000
_NEVER_PUBLISHED = 0


class PolicyDirectory:
    def __init__(
        self,
        default_threshold: int,
        judge: JudgeFormat | None = None,
    ) -> None:
        self._default_threshold = default_threshold
        self._judge = judge
        # Least recently used first.
        self._sets: OrderedDict[OrganizationId, PolicySet] = OrderedDict()
        self._cached_policies = 0

    async def current(
        self, connection: Connection, epochs: Mapping[OrganizationId, int]
    ) -> dict[OrganizationId, PolicySet]:
        """Hold the accounts' locks, or read the epochs in the same snapshot on this connection."""
        sets: dict[OrganizationId, PolicySet] = {}
        missing: dict[OrganizationId, int] = {}
        for organization_id, epoch in epochs.items():
            if epoch == _NEVER_PUBLISHED:
                sets[organization_id] = NO_POLICIES
                continue
            cached = self._sets.get(organization_id)
            if cached is not None and cached.epoch == epoch:
                self._sets.move_to_end(organization_id)
                sets[organization_id] = cached
            else:
                missing[organization_id] = epoch
        if missing:
            sets |= await self._read(connection, missing)
        return sets

    async def _read(
        self, connection: Connection, epochs: Mapping[OrganizationId, int]
    ) -> dict[OrganizationId, PolicySet]:
        """Without cached versions, because all calls admitted together wait for this."""
        published: dict[OrganizationId, list[PublishedPolicy]] = {
            organization_id: [] for organization_id in epochs
        }
        cached = [self._sets.get(organization_id, NO_POLICIES) for organization_id in epochs]
        known = {name: version for one in cached for name, version in one.versions.items()}
        for policy in await policies.find_published(connection, list(epochs), known):
            published[policy.organization_id].append(policy)
        sets = {
            organization_id: policy_set(
                epoch,
                published[organization_id],
                self._default_threshold,
                self._judge,
            )
            for organization_id, epoch in epochs.items()
        }
        for organization_id, current in sets.items():
            self._cache(organization_id, current)
        return sets

    def _cache(self, organization_id: OrganizationId, current: PolicySet) -> None:
        before = self._sets.pop(organization_id, None)
        self._cached_policies += current.size - (0 if before is None else before.size)
        self._sets[organization_id] = current
        while len(self._sets) > _ORGANIZATIONS_MAX or (
            self._cached_policies > _POLICIES_MAX and len(self._sets) > 1
        ):
            _, dropped = self._sets.popitem(last=False)
            self._cached_policies -= dropped.size
