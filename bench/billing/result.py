"""Compares the true cost of calls with the cost that a gateway has booked."""

from dataclasses import dataclass
from decimal import Decimal

# In USD. A booking is exact if its error is smaller, because some gateways compute with floats.
EXACT_WITHIN = Decimal("0.000000001")
NOT_OFFERED = "not offered"


@dataclass(frozen=True)
class Result:
    scenario: str
    true: Decimal | None
    booked: Decimal | None
    certain: bool
    # The beginning of the client's answer with its status, or the exception.
    answer: str
    # The reason why the gateway did not play the scenario or did not call the provider.
    not_offered: str | None = None

    @property
    def error(self) -> Decimal | None:
        """Return the booked cost minus the billed cost, or None if they cannot be compared. A missing
        booking counts as zero."""
        if self.true is None or self.not_offered is not None:
            return None
        return (self.booked or Decimal(0)) - self.true

    @property
    def exact(self) -> bool | None:
        return None if self.error is None else abs(self.error) < EXACT_WITHIN and self.certain

    @property
    def refused(self) -> bool:
        """Return whether the client got an answer although the gateway did not call the provider."""
        return self.not_offered is not None and self.answer != ""

    def verdict(self, marks_unknown: bool = True) -> str:
        """Return the result in one or two words. `marks_unknown` says whether the gateway has any way to
        mark a cost as unknown."""
        if self.not_offered is not None:
            return "refused" if self.refused else NOT_OFFERED
        if self.true is not None:
            return "exact" if self.exact else "wrong"
        if not marks_unknown:
            return NOT_OFFERED
        return "not marked" if self.certain else "marked"


@dataclass(frozen=True)
class TrialResult:
    """The provider's bill and the gateway's bookings for many calls of one client."""

    trial: str
    true: Decimal
    booked: Decimal
    budget: Decimal | None
    calls: int
    answered: int
    # The calls without a final amount that the gateway marks, and their cost.
    marked: int = 0
    marked_usd: Decimal = Decimal(0)
    # The calls while the database was down, and those of them that were answered.
    in_outage: int = 0
    answered_in_outage: int = 0

    @property
    def overspent(self) -> Decimal | None:
        return None if self.budget is None else max(Decimal(0), self.true - self.budget)

    @property
    def lost(self) -> Decimal:
        """Return the cost of the calls that are neither booked nor marked."""
        return max(Decimal(0), self.true - self.booked - self.marked_usd)
