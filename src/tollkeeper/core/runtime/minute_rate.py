"""Limits an owner's uses per minute. Each process counts for itself."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

NS_PER_S = 1_000_000_000
_MINUTE_NS = 60 * NS_PER_S
_OWNERS_MAX = 10_000


class MinuteRate:
    """All uses of a minute may come at once."""

    def __init__(self, per_minute: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.per_minute = per_minute
        self._clock_ns = clock_ns
        # Per owner, least recently active first. Each use moves the time forward by a minute /
        # `per_minute`. The unit is 1 ns / `per_minute`, so a use is exactly `_MINUTE_NS` units and
        # nothing is rounded.
        self._used_until: OrderedDict[Hashable, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used_until)

    def wait_ns(self, owner: Hashable) -> int:
        """0 if it's allowed now."""
        used_until = self._used_until.get(owner)
        if used_until is None:
            return 0
        # A use may move the time to at most one minute ahead, and `ahead` is where it would be. The
        # negated floor division rounds the wait up.
        ahead = used_until - self._now() + _MINUTE_NS
        return max(0, -((_MINUTE_NS * self.per_minute - ahead) // self.per_minute))

    def use(self, owner: Hashable, times: int = 1) -> None:
        """Counts them all, even if fewer are left. Does nothing if none is left."""
        if self.wait_ns(owner):
            return
        used_until = max(self._now(), self._used_until.get(owner, 0)) + times * _MINUTE_NS
        self._used_until[owner] = used_until
        self._used_until.move_to_end(owner)
        if len(self._used_until) > _OWNERS_MAX:
            self._used_until.popitem(last=False)

    def _now(self) -> int:
        return self._clock_ns() * self.per_minute
