"""Published policies, kept in memory by epoch.

Every change of an organization's policies raises the epoch of its account, under the account's
lock. Admission holds that lock and reads the epoch anyway, so a set that is read there is exactly
the set of that admission, and reading it again costs something only after a change.
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
        """The sets of these epochs. The accounts must be locked, or the connection's snapshot be
        that of the epochs."""
        return {
            organization_id: await self._current(connection, organization_id, epoch)
            for organization_id, epoch in epochs.items()
        }

    async def _current(
        self, connection: Connection, organization_id: OrganizationId, epoch: int
    ) -> PolicySet:
        known = self._sets.get(organization_id)
        if known is not None and known.epoch == epoch:
            return known
        found = policy_set(
            epoch,
            await policies.find_published(connection, organization_id),
            self._default_threshold,
        )
        self._sets[organization_id] = found
        if len(self._sets) > _ORGANIZATIONS_MAX:
            self._sets.popitem(last=False)
        return found
