"""Limits the actions (uses) of an owner, for example an organization, to a number per minute. Each
process counts for itself."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

NS_PER_S = 1_000_000_000
_MINUTE_NS = 60 * NS_PER_S
_OWNERS_MAX = 10_000


class MinuteRate:
    """Limits the uses of each owner to a number per minute. All uses of a minute may come at
    once."""

    def __init__(self, per_minute: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.per_minute = per_minute
        self._clock_ns = clock_ns
        # A time for each owner. Each use moves it forward by a minute divided by `per_minute`. To
        # avoid rounding, the unit of time is 1 ns / `per_minute`, so that one use is exactly
        # `_MINUTE_NS` units. The least recently active owner comes first.
        self._used_until: OrderedDict[Hashable, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used_until)

    def wait_ns(self, owner: Hashable) -> int:
        """Returns the nanoseconds until the owner's next use is allowed; 0 if it is allowed now."""
        used_until = self._used_until.get(owner)
        if used_until is None:
            return 0
        # A use is allowed if it moves the owner's time to at most one minute after the present.
        # `ahead` is this difference after the next use. The negated floor division rounds the wait
        # up.
        ahead = used_until - self._now() + _MINUTE_NS
        return max(0, -((_MINUTE_NS * self.per_minute - ahead) // self.per_minute))

    def use(self, owner: Hashable, times: int = 1) -> None:
        """Counts `times` uses at once, even if fewer uses are left. Does nothing if none is left."""
        if self.wait_ns(owner):
            return
        used_until = max(self._now(), self._used_until.get(owner, 0)) + times * _MINUTE_NS
        self._used_until[owner] = used_until
        self._used_until.move_to_end(owner)
        if len(self._used_until) > _OWNERS_MAX:
            self._used_until.popitem(last=False)

    def _now(self) -> int:
        return self._clock_ns() * self.per_minute
