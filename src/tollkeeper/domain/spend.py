"""Counts the money that an organization or a project holds and has spent.

A hold is the highest possible cost of a call, reserved before the call is sent. A hold is open until
it is resolved with or without a cost, or becomes unsettled because the cost is unknown. An unsettled
hold still reserves its amount until it is resolved. To fold is to update the counters for holds that
were resolved or became unsettled. Overage is the part of a cost that exceeds its hold.
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from tollkeeper.domain.access import ProjectId


class Spend(msgspec.Struct, frozen=True, gc=False):
    """Counts the money that an organization or a project holds and has spent. `held_picousd` is
    without unsettled holds, and `settled_picousd` includes overage."""

    held_picousd: int = 0
    unsettled_picousd: int = 0
    settled_picousd: int = 0

    def with_hold(self, amount: int) -> "Spend":
        return replace(self, held_picousd=self.held_picousd + amount)

    def folded(self, fold: "Fold") -> "Spend":
        """Applies a fold to the counters."""
        if fold.kind is FoldKind.UNSETTLED:
            return replace(
                self,
                held_picousd=self.held_picousd - fold.hold_picousd,
                unsettled_picousd=self.unsettled_picousd + fold.hold_picousd,
            )
        spent = fold.settled_picousd + fold.overage_picousd
        from_held = 0 if fold.was_unsettled else fold.hold_picousd
        return replace(
            self,
            held_picousd=self.held_picousd - from_held,
            unsettled_picousd=self.unsettled_picousd - (fold.hold_picousd - from_held),
            settled_picousd=self.settled_picousd + spent,
        )


class FoldKind(StrEnum):
    UNSETTLED = "unsettled"
    RESOLVED = "resolved"


class Fold(msgspec.Struct, frozen=True, gc=False):
    """Contains the sums of holds of one project that all were resolved, or all became unsettled.
    `was_unsettled` means that they were unsettled before
    they were resolved."""

    project_id: ProjectId
    kind: FoldKind
    was_unsettled: bool
    # The number of holds.
    count: int
    hold_picousd: int
    settled_picousd: int
    overage_picousd: int
    # The highest possible overage of these calls together, which counted as overage in flight until
    # the holds were resolved or became unsettled.
    overage_max_picousd: int = 0
