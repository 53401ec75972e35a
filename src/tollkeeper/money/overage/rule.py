"""How much a model's next calls may exceed their holds, going by the calls that lately did.

A call that cost more than its hold shows that the backend did something that nobody had declared, so it may
do it again.
"""

from collections.abc import Iterable

import msgspec

_DAY_S = 86_400
# By then it counts for less than a billionth.
EXCESS_LIFETIME_DAYS = 30


class Excess(msgspec.Struct, frozen=True, gc=False):
    model: str
    backend: str
    hold_picousd: int
    cost_picousd: int
    at: int

    @property
    def overage_picousd(self) -> int:
        return self.cost_picousd - self.hold_picousd

    def exceeds(self, other: "Excess") -> bool:
        """In relation to the holds. Products, because a quotient would be rounded."""
        own = self.overage_picousd * _divisor(other.hold_picousd)
        return own > other.overage_picousd * _divisor(self.hold_picousd)

    def halvings(self, now: int) -> int:
        return max(0, now - self.at) // _DAY_S

    def percent(self, now: int) -> int:
        """Expected of later calls, in percent of their holds, rounded up."""
        return -(-self.overage_picousd * 100 // (_divisor(self.hold_picousd) << self.halvings(now)))

    def overage_of(self, hold: int, cost_max: int, now: int) -> int:
        """The overage of a call that exceeds its hold as much as this one did, halved for each day since,
        rounded up.

        A small hold can be exceeded a thousandfold, by one search say, which would be absurd for a large one.
        So the model's limits (`cost_max`) limit the result, unless this call itself cost more.
        """
        divisor = _divisor(self.hold_picousd) << self.halvings(now)
        scaled = -(-self.overage_picousd * max(hold, 1) // divisor)
        return min(scaled, max(cost_max - hold, self.overage_picousd))


def overage_observed(cases: Iterable[Excess], hold: int, cost_max: int, now: int) -> int:
    return max((case.overage_of(hold, cost_max, now) for case in cases), default=0)


def largest(cases: Iterable[Excess]) -> dict[tuple[str, str], Excess]:
    """Of each model at each backend, by name."""
    found: dict[tuple[str, str], Excess] = {}
    for case in cases:
        known = found.get((case.model, case.backend))
        if known is None or case.exceeds(known):
            found[case.model, case.backend] = case
    return dict(sorted(found.items()))


def by_model(cases: Iterable[Excess]) -> dict[str, tuple[Excess, ...]]:
    """Without those that aren't larger than a newer one at the same backend, because they halve earlier."""
    found: dict[str, tuple[Excess, ...]] = {}
    last: dict[tuple[str, str], Excess] = {}
    for case in sorted(cases, key=lambda one: -one.at):
        newer = last.get((case.model, case.backend))
        if newer is None or case.exceeds(newer):
            last[case.model, case.backend] = case
            found[case.model] = (*found.get(case.model, ()), case)
    return found


def _divisor(hold: int) -> int:
    """A model whose tokens are free has holds of zero, which can be exceeded too."""
    return max(hold, 1)
