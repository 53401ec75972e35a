"""Caches the published policies of each organization in memory, together with their epoch.

The epoch is a number in the organization's account. Every change of the published policies locks
the account and increments the epoch by a random number. Admission reads the epoch under the same
lock. So if the cached policies have the epoch that admission reads, they are the current policies.
The policies are read from the database only if the epoch has changed. If an organization has the
epoch 0, it has never published a policy, and nothing is read.
"""

from collections import OrderedDict
from collections.abc import Mapping

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.policy import JudgeFormat
from tollkeeper.domain.policy_set import NO_POLICIES, PolicySet, PublishedPolicy, policy_set
from tollkeeper.storage import policies
from tollkeeper.storage.database import Connection

_ORGANIZATIONS_MAX = 10_000
# One organization can have many policies, so the total number of cached policies has its own limit.
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
        # The least recently used policy set comes first.
        self._sets: OrderedDict[OrganizationId, PolicySet] = OrderedDict()
        self._cached_policies = 0

    async def current(
        self, connection: Connection, epochs: Mapping[OrganizationId, int]
    ) -> dict[OrganizationId, PolicySet]:
        """Returns the policy set of each organization at its epoch. The caller must hold the locks
        of the accounts, or must have read the epochs on this connection in the same database
        snapshot."""
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
        """Reads the policies of all these organizations together, and no version that is already
        cached, because all calls that are admitted together wait for the result."""
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
