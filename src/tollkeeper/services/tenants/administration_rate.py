"""Limits the administration requests of an organization, in one process.

Administration uses a database that all organizations share. A request beyond the rate is rejected
before its body is read and, if its key was seen recently, without the database.
"""

from collections import OrderedDict

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import RateLimited
from tollkeeper.domain.keys import key_digest
from tollkeeper.services.minute_rate import NS_PER_S, MinuteRate

# The rate of one organization. The requests of a whole minute may arrive at once.
PER_MINUTE = 600
_KEYS_MAX = 10_000
# This many bytes of a body count as another request. Larger bodies than the maximum are rejected
# anyway, because no field may be that long.
_BYTES_PER_USE = 4096
_USES_PER_BODY_MAX = 32


class AdministrationRate:
    def __init__(self, rate: MinuteRate | None = None) -> None:
        self._rate = MinuteRate(PER_MINUTE) if rate is None else rate
        # The owner of a key by the key's digest, the least recently used first.
        self._owners: OrderedDict[bytes, OrganizationId] = OrderedDict()

    def require_room(self, presented: str) -> None:
        """Raises RateLimited if the key is known from an earlier request and its organization has
        used up its rate. Counts nothing."""
        owner = self._owners.get(key_digest(presented))
        if owner is not None:
            self._require(owner)

    def take(self, organization_id: OrganizationId, presented: str) -> None:
        """Counts a request with a valid key. Raises RateLimited if the rate is used up."""
        digest = key_digest(presented)
        self._owners[digest] = organization_id
        self._owners.move_to_end(digest)
        if len(self._owners) > _KEYS_MAX:
            self._owners.popitem(last=False)
        self._require(organization_id)
        self._rate.use(organization_id)

    def count_body(self, organization_id: OrganizationId, body_bytes: int) -> None:
        """Counts a body in addition to its request, because its content is stored."""
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
