"""What an organization or a project holds and has spent. Folding updates the counters for holds that were
resolved or became unsettled; an unsettled hold still reserves its amount."""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from tollkeeper.core.access import ProjectId


class Spend(msgspec.Struct, frozen=True, gc=False):
    """`held_picousd` is without unsettled holds, `settled_picousd` with overage."""

    held_picousd: int = 0
    unsettled_picousd: int = 0
    settled_picousd: int = 0

    def with_hold(self, amount: int) -> "Spend":
        return replace(self, held_picousd=self.held_picousd + amount)

    def folded(self, fold: "Fold") -> "Spend":
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
    """One project's holds that all were resolved, or all became unsettled. `was_unsettled`: they were that
    before they were resolved."""

    project_id: ProjectId
    kind: FoldKind
    was_unsettled: bool
    count: int
    hold_picousd: int
    settled_picousd: int
    overage_picousd: int
    # The highest possible overage of these calls, in flight until now.
    overage_max_picousd: int = 0
