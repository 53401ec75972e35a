"""Limits an organization's administration requests, per process. All organizations share the
database, so a request beyond the rate is rejected before its body is read, and if its key was used
recently, even before a query."""

from collections import OrderedDict

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import RateLimited
from tollkeeper.core.runtime.minute_rate import NS_PER_S, MinuteRate
from tollkeeper.tenants.keys import key_digest

# Of one organization. They may all come at once.
PER_MINUTE = 600
_KEYS_MAX = 10_000
# Every full `_BYTES_PER_USE` of a body count as another request, up to `_USES_PER_BODY_MAX`. Larger
# bodies are rejected anyway, because one of their fields is too long.
_BYTES_PER_USE = 4096
_USES_PER_BODY_MAX = 32


class AdministrationRate:
    def __init__(self, rate: MinuteRate | None = None) -> None:
        self._rate = MinuteRate(PER_MINUTE) if rate is None else rate
        # Of recently used keys, by digest, least recently used first.
        self._organizations: OrderedDict[bytes, OrganizationId] = OrderedDict()

    def require_room(self, presented_key: str) -> None:
        """If the key is known and its organization's rate is used up. Doesn't count."""
        organization_id = self._organizations.get(key_digest(presented_key))
        if organization_id is not None:
            self._require_rate(organization_id)

    def take(self, organization_id: OrganizationId, presented_key: str) -> None:
        """Counts a request with a valid key, and remembers the key for `require_room`."""
        digest = key_digest(presented_key)
        self._organizations[digest] = organization_id
        self._organizations.move_to_end(digest)
        if len(self._organizations) > _KEYS_MAX:
            self._organizations.popitem(last=False)
        self.count_request(organization_id)

    def count_request(self, organization_id: OrganizationId) -> None:
        """Raises RateLimited if the rate is used up."""
        self._require_rate(organization_id)
        self._rate.use(organization_id)

    def count_body(self, organization_id: OrganizationId, body_bytes: int) -> None:
        """A large body counts as further requests, because it's stored."""
        times = min(body_bytes // _BYTES_PER_USE, _USES_PER_BODY_MAX)
        if times:
            self._rate.use(organization_id, times)

    def _require_rate(self, organization_id: OrganizationId) -> None:
        wait_ns = self._rate.wait_ns(organization_id)
        if wait_ns:
            raise RateLimited(
                f"The organization has used up its rate of {self._rate.per_minute} administration "
                "requests per minute. A large body counts as several requests.",
                retry_after_s=-(-wait_ns // NS_PER_S),
            )
