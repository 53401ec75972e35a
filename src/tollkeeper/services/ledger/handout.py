"""Delivers the results of a batch to all callers at once or, if calls have to share the process, a
few in each iteration of the event loop."""

from collections.abc import Callable

from tollkeeper.runtime.fair_turns import FairTurns

# The number of calls that continue in one iteration. Each takes some tenths of a millisecond.
PER_TURN = 8


class Handout(FairTurns):
    def __init__(self) -> None:
        super().__init__(PER_TURN)
        # Tells whether calls have to share the process; True if unknown.
        self.needed: Callable[[], bool] = lambda: True

    @property
    def is_needed(self) -> bool:
        """Tells whether results must be delivered by `add`. Otherwise they may be delivered to all
        callers at once."""
        return len(self) > 0 or self.needed()
