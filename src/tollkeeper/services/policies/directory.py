"""Caches the published policies of organizations in memory, by epoch.

Every change of an organization's policies raises the epoch of its account, under the account's
lock. Admission holds that lock and has read the epoch, so the cached set of that epoch is exactly
the set in force. The policies are read from the database only after the epoch has changed.
"""

from collections import OrderedDict

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.policy_set import PolicySet, policy_set
from tollkeeper.storage import policies
from tollkeeper.storage.database import Connection

_ORGANIZATIONS_MAX = 10_000


class PolicyDirectory:
    def __init__(self, default_threshold: int) -> None:
        self._default_threshold = default_threshold
        self._sets: OrderedDict[OrganizationId, PolicySet] = OrderedDict()

    async def current(
        self, connection: Connection, epochs: dict[OrganizationId, int]
    ) -> dict[OrganizationId, PolicySet]:
        """The policy set of each organization at its epoch. The caller holds the locks of the
        accounts, or has read the epochs in the same snapshot of this connection."""
        return {
            organization_id: await self._current(connection, organization_id, epoch)
            for organization_id, epoch in epochs.items()
        }

    async def _current(
        self, connection: Connection, organization_id: OrganizationId, epoch: int
    ) -> PolicySet:
        cached = self._sets.get(organization_id)
        if cached is not None and cached.epoch == epoch:
            return cached
        current = policy_set(
            epoch,
            await policies.find_published(connection, organization_id),
            self._default_threshold,
        )
        self._sets[organization_id] = current
        if len(self._sets) > _ORGANIZATIONS_MAX:
            self._sets.popitem(last=False)
        return current
