"""What is compared: the true cost with what a gateway has booked."""

from dataclasses import dataclass
from decimal import Decimal

# Gateways that compute with floats are exact if their amount is off by less than this.
EXACT_WITHIN = Decimal("0.000000001")


@dataclass(frozen=True)
class Result:
    scenario: str
    true: Decimal | None
    booked: Decimal | None
    certain: bool
    # What the client got: the status, or the exception.
    answer: str
    # The reason why a gateway was not asked, or has no figure.
    not_offered: str | None = None

    @property
    def error(self) -> Decimal | None:
        """How much more is booked than billed. A missing entry books nothing."""
        if self.true is None or self.not_offered is not None:
            return None
        return (self.booked or Decimal(0)) - self.true

    @property
    def exact(self) -> bool | None:
        return None if self.error is None else abs(self.error) < EXACT_WITHIN and self.certain


@dataclass(frozen=True)
class TrialResult:
    """Many calls of one client: what the provider bills, and what the gateway books."""

    trial: str
    true: Decimal
    booked: Decimal
    budget: Decimal | None
    calls: int
    answered: int

    @property
    def overspent(self) -> Decimal | None:
        return None if self.budget is None else max(Decimal(0), self.true - self.budget)

    @property
    def lost(self) -> Decimal:
        return max(Decimal(0), self.true - self.booked)
