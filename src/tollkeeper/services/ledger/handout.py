"""Hands out the results of a batch: to all callers at once or, where calls have to share the process,
a few in each turn of the event loop."""

from collections.abc import Callable

from tollkeeper.fair_turns import FairTurns

# So many calls go on in one turn of the loop. Each takes some tenths of a millisecond.
PER_TURN = 8


class Handout(FairTurns):
    def __init__(self) -> None:
        super().__init__(PER_TURN)
        # Whether calls have to share the process, as far as somebody knows.
        self.needed: Callable[[], bool] = lambda: True

    @property
    def is_needed(self) -> bool:
        """Whether results have to be given by `add`. Where they need not, whoever has them may give
        them to all callers at once."""
        return len(self) > 0 or self.needed()
