"""How often an organization's administrators may ask, in one process.

Administration reads and writes a database that all organizations share. A request beyond the rate is
refused before its body is read, and without the database where its key was seen a moment ago.
"""

from collections import OrderedDict

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import RateLimited
from tollkeeper.domain.keys import key_digest
from tollkeeper.services.minute_rate import NS_PER_S, MinuteRate

# Requests of one organization. A minute's worth may come at once.
PER_MINUTE = 600
_KEYS_MAX = 10_000
# Every so many bytes of a body weigh as much as another request. What is longer than all of this is
# refused anyway, because no field may be so long.
_BYTES_PER_USE = 4096
_USES_PER_BODY_MAX = 32


class AdministrationRate:
    def __init__(self, rate: MinuteRate | None = None) -> None:
        self._rate = MinuteRate(PER_MINUTE) if rate is None else rate
        # Whose key this was, by its digest. The one that was used longest ago comes first.
        self._owners: OrderedDict[bytes, OrganizationId] = OrderedDict()

    def require_room(self, presented: str) -> None:
        """Raises RateLimited where the key is known from an earlier request and its organization has
        nothing left. Takes nothing."""
        owner = self._owners.get(key_digest(presented))
        if owner is not None:
            self._require(owner)

    def take(self, organization_id: OrganizationId, presented: str) -> None:
        """Counts a request whose key was found to be good. Raises RateLimited where nothing is left."""
        digest = key_digest(presented)
        self._owners[digest] = organization_id
        self._owners.move_to_end(digest)
        if len(self._owners) > _KEYS_MAX:
            self._owners.popitem(last=False)
        self._require(organization_id)
        self._rate.use(organization_id)

    def count_body(self, organization_id: OrganizationId, body_bytes: int) -> None:
        """Counts what a body weighs beside its request: what it contains is stored, and stays."""
        times = min(body_bytes // _BYTES_PER_USE, _USES_PER_BODY_MAX)
        if times:
            self._rate.use(organization_id, times)

    def _require(self, organization_id: OrganizationId) -> None:
        wait_ns = self._rate.wait_ns(organization_id)
        if wait_ns:
            raise RateLimited(
                f"The organization has asked for administration {self._rate.per_minute} times within "
                "a minute, as often as it may.",
                retry_after_s=-(-wait_ns // NS_PER_S),
            )
