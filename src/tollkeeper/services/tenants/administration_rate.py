"""How often an organization's administrators may ask, in one process.

Administration reads and writes a database that all organizations share. A request beyond the rate is
refused before its body is read, and without the database where its key was seen a moment ago.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import RateLimited
from tollkeeper.domain.keys import key_digest

_NS_PER_S = 1_000_000_000
_MINUTE_NS = 60 * _NS_PER_S
_KEPT_MAX = 10_000

K = TypeVar("K")
V = TypeVar("V")


class AdministrationRate:
    """A minute's worth may come at once."""

    def __init__(self, per_minute: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._per_minute = per_minute
        self._clock_ns = clock_ns
        # Up to when each organization has used up its rate. Time is counted in such units that one
        # request takes as many of them as a minute has nanoseconds, so that nothing is rounded. The
        # organization that asked longest ago comes first.
        self._used_until: OrderedDict[OrganizationId, int] = OrderedDict()
        # Whose key this was, by its digest.
        self._owners: OrderedDict[bytes, OrganizationId] = OrderedDict()

    def require_room(self, presented: str) -> None:
        """Raises RateLimited where the key is known from an earlier request and its organization has
        nothing left. Takes nothing."""
        owner = self._owners.get(key_digest(presented))
        if owner is not None:
            self._next(owner)

    def take(self, organization_id: OrganizationId, presented: str) -> None:
        """Counts a request whose key was found to be good. Raises RateLimited where nothing is left."""
        _keep(self._owners, key_digest(presented), organization_id)
        _keep(self._used_until, organization_id, self._next(organization_id))

    def _next(self, organization_id: OrganizationId) -> int:
        """Up to when the organization has used up its rate with one request more."""
        units_per_s = _NS_PER_S * self._per_minute
        now = self._clock_ns() * self._per_minute
        used_until = max(now, self._used_until.get(organization_id, 0)) + _MINUTE_NS
        beyond = used_until - now - _MINUTE_NS * self._per_minute
        if beyond > 0:
            raise RateLimited(
                f"The organization has asked for administration {self._per_minute} times within a "
                "minute, as often as it may.",
                retry_after_s=-(-beyond // units_per_s),
            )
        return used_until


def _keep(kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _KEPT_MAX:
        kept.popitem(last=False)
