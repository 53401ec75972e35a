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
from tollkeeper.domain.caps import Cap, CapPeriod, PeriodCap


class Spend(msgspec.Struct, frozen=True, gc=False):
    """Counts the money that an organization or a project holds and has spent, in total and in one
    UTC month.

    `month_held_picousd` includes unsettled holds, because their money cannot be spent again before
    they are resolved. `held_picousd` does not include unsettled holds; `unsettled_picousd` counts
    them. The settled amounts include overage.
    """

    held_picousd: int = 0
    unsettled_picousd: int = 0
    settled_picousd: int = 0
    # The counted month, for example 202611.
    month: int = 0
    month_held_picousd: int = 0
    month_settled_picousd: int = 0

    def in_month(self, month: int) -> "Spend":
        """Returns the counters for `month`, with monthly counts of zero, if it is later than the
        counted month. Otherwise returns the counters unchanged, because going back would lose the
        later month's counts."""
        if month <= self.month:
            return self
        return replace(self, month=month, month_held_picousd=0, month_settled_picousd=0)

    def with_hold(self, amount: int) -> "Spend":
        return replace(
            self,
            held_picousd=self.held_picousd + amount,
            month_held_picousd=self.month_held_picousd + amount,
        )

    def under(self, cap: Cap) -> PeriodCap:
        """Returns the monthly or total cap with the held and settled amounts that count for it, in the
        same form as caps of other periods. The period of a total cap has the number 0."""
        if cap.period is CapPeriod.MONTH:
            counted = (self.month, self.month_held_picousd, self.month_settled_picousd)
        else:
            held = self.held_picousd + self.unsettled_picousd
            counted = (0, held, self.settled_picousd)
        return PeriodCap(cap.amount_picousd, *counted)

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
        # The ledger restores holds that a crash of PostgreSQL has lost. The month of such a hold
        # may be later than `self.month`.
        spend = self.in_month(fold.month)
        this_month = fold.month == spend.month
        return replace(
            spend,
            held_picousd=spend.held_picousd - from_held,
            unsettled_picousd=spend.unsettled_picousd - (fold.hold_picousd - from_held),
            settled_picousd=spend.settled_picousd + spent,
            month_held_picousd=spend.month_held_picousd - (fold.hold_picousd if this_month else 0),
            month_settled_picousd=spend.month_settled_picousd + (spent if this_month else 0),
        )


class FoldKind(StrEnum):
    UNSETTLED = "unsettled"
    RESOLVED = "resolved"


class Fold(msgspec.Struct, frozen=True, gc=False):
    """Contains the sums of holds that all were resolved, or all became unsettled. They belong to one
    project and were admitted in one month. `was_unsettled` means that they were unsettled before
    they were resolved."""

    project_id: ProjectId
    kind: FoldKind
    was_unsettled: bool
    month: int
    # The number of holds.
    count: int
    hold_picousd: int
    settled_picousd: int
    overage_picousd: int
    # The highest possible overage of these calls together, which counted as overage in flight until
    # the holds were resolved or became unsettled.
    overage_max_picousd: int = 0
