"""Caches the published policies of organizations in memory, by epoch.

Every change of an organization's policies increments the epoch of its account, under the account's
lock. Admission holds that lock and has read the epoch, so the cached set of that epoch is exactly
the current set. The policies are read from the database only after the epoch has changed. An
organization whose epoch is 0 has never published anything, and is not looked up at all.
"""

from collections import OrderedDict
from collections.abc import Mapping

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.policy import JudgeFormat, Policy
from tollkeeper.domain.policy_set import EMPTY, PolicySet, policy_set
from tollkeeper.storage import policies
from tollkeeper.storage.database import Connection

_ORGANIZATIONS_MAX = 10_000
# An organization may have thousands of policies, so they have a separate limit.
_POLICIES_MAX = 200_000
_NEVER_PUBLISHED = 0


class PolicyDirectory:
    def __init__(
        self,
        default_threshold: int,
        judge: JudgeFormat | None = None,
        verdict_picousd: int = 0,
    ) -> None:
        """`verdict_picousd` is the price of each verdict that a call waits for, paid by the
        organization."""
        self._default_threshold = default_threshold
        self._judge = judge
        self._verdict_picousd = verdict_picousd
        # The least recently used comes first.
        self._sets: OrderedDict[OrganizationId, PolicySet] = OrderedDict()
        self._policies = 0

    async def current(
        self, connection: Connection, epochs: Mapping[OrganizationId, int]
    ) -> dict[OrganizationId, PolicySet]:
        """Returns the policy set of each organization at its epoch. The caller holds the locks of
        the accounts, or has read the epochs in the same snapshot of this connection."""
        found: dict[OrganizationId, PolicySet] = {}
        missing: dict[OrganizationId, int] = {}
        for organization_id, epoch in epochs.items():
            if epoch == _NEVER_PUBLISHED:
                found[organization_id] = EMPTY
                continue
            cached = self._sets.get(organization_id)
            if cached is not None and cached.epoch == epoch:
                self._sets.move_to_end(organization_id)
                found[organization_id] = cached
            else:
                missing[organization_id] = epoch
        if missing:
            found |= await self._read(connection, missing)
        return found

    async def _read(
        self, connection: Connection, epochs: Mapping[OrganizationId, int]
    ) -> dict[OrganizationId, PolicySet]:
        """Reads all sets with one statement, because every admission of the batch waits for it."""
        published: dict[OrganizationId, list[Policy]] = {one: [] for one in epochs}
        for policy in await policies.find_published(connection, list(epochs)):
            published[policy.organization_id].append(policy)
        found = {
            organization_id: policy_set(
                epoch,
                published[organization_id],
                self._default_threshold,
                self._judge,
                self._verdict_picousd,
            )
            for organization_id, epoch in epochs.items()
        }
        for organization_id, current in found.items():
            self._keep(organization_id, current)
        return found

    def _keep(self, organization_id: OrganizationId, current: PolicySet) -> None:
        before = self._sets.pop(organization_id, None)
        self._policies += current.size - (0 if before is None else before.size)
        self._sets[organization_id] = current
        while len(self._sets) > _ORGANIZATIONS_MAX or (
            self._policies > _POLICIES_MAX and len(self._sets) > 1
        ):
            _, dropped = self._sets.popitem(last=False)
            self._policies -= dropped.size
