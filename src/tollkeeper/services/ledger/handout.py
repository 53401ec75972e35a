"""Delivers the results of a batch to the waiting calls, a few in each iteration of the event loop,
so that these calls do not block the other calls of a busy process."""

from collections.abc import Callable

from tollkeeper.runtime.fair_queue import FairTurns

# The number of calls that continue in one iteration. Each call then runs for some tenths of a
# millisecond.
PER_TURN = 8


class Handout(FairTurns):
    def __init__(self) -> None:
        super().__init__(PER_TURN)
        # Tells whether the process is so busy that calls must take turns. The worker replaces this
        # default.
        self.needed: Callable[[], bool] = lambda: True

    @property
    def is_needed(self) -> bool:
        """Tells whether results must be delivered with `add`. If not, the caller may deliver all
        results at once."""
        return len(self) > 0 or self.needed()
