"""Limits how often an owner may do something per minute, in one process."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

NS_PER_S = 1_000_000_000
_MINUTE_NS = 60 * NS_PER_S
_OWNERS_MAX = 10_000


class MinuteRate:
    """Allows the uses of a whole minute at once."""

    def __init__(self, per_minute: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.per_minute = per_minute
        self._clock_ns = clock_ns
        # The time until which each owner has used up its rate. The time unit is chosen so that one
        # use takes as many units as a minute has nanoseconds, which avoids rounding. The least
        # recently active owner comes first.
        self._used_until: OrderedDict[Hashable, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used_until)

    def wait_ns(self, owner: Hashable) -> int:
        """Returns the time until the owner's next use is allowed, or 0."""
        if not self._used_until:
            return 0  # avoids hashing the owner, which is slow for an id
        used_until = self._used_until.get(owner)
        if used_until is None:
            return 0
        ahead = used_until - self._now() + _MINUTE_NS
        return max(0, -((_MINUTE_NS * self.per_minute - ahead) // self.per_minute))

    def use(self, owner: Hashable, times: int = 1) -> None:
        """Counts a use, which may weigh as much as several. Uses beyond the rate are not
        counted."""
        if self.wait_ns(owner):
            return
        used_until = max(self._now(), self._used_until.get(owner, 0)) + times * _MINUTE_NS
        self._used_until[owner] = used_until
        self._used_until.move_to_end(owner)
        if len(self._used_until) > _OWNERS_MAX:
            self._used_until.popitem(last=False)

    def _now(self) -> int:
        return self._clock_ns() * self.per_minute
