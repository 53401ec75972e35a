"""Limits how many requests begin in one iteration of the event loop ("turn"). A client with hundreds of
connections makes every iteration long, even if its requests are rejected, and each call needs more than a
dozen. So only a few begin, and of one owner (usually an organization) even fewer while others have calls in
progress."""

from collections.abc import Callable, Hashable

from tollkeeper.core.runtime.connection_limit import network_of
from tollkeeper.core.runtime.fair_queue import Callback, FairQueue, FairTurns

PER_TURN = 16
# While others have calls in progress.
PER_TURN_OF_OWNER = 4
# All unknown owners together, while a call is in progress. An owner is unknown until the connection has had a
# valid key.
PER_TURN_OF_STRANGERS = 1
# Hardly ever reached: one entry for each open connection, limited by `ConnectionLimit`, and those closed
# while they waited, which leave in their turn.
_STRANGERS_MAX = 1_000_000


class Arrivals:
    """Owners are served round-robin. Unknown ones count as one, from however many addresses, and share by
    network."""

    def __init__(self, turns: FairTurns, is_overloaded: Callable[[], bool] = lambda: False) -> None:
        self.turns = turns
        # It then rejects most calls at once.
        self._is_overloaded = is_overloaded
        # `take`: may this owner's request begin now? `wait`: call back in the owner's turn. `count`: one
        # began without `take`.
        self.take = turns.take
        self.wait = turns.wait
        self.count = turns.count
        self._strangers: FairQueue[Callback] = FairQueue(
            items_max=_STRANGERS_MAX, lane_max=_STRANGERS_MAX
        )

    def probably_rejects(self, owner: Hashable) -> bool:
        """Such a request may begin early, because rejecting takes little more time than queueing. But an
        overloaded application still serves some requests, with admin keys say, so an owner that used up its
        limit like this has to wait."""
        return owner is not None and self._is_overloaded() and not self.turns.exceeds(owner)

    def wait_as_stranger(self, address: str, begin: Callback) -> None:
        """Like `wait`."""
        self._strangers.push(network_of(address), begin)
        # Not necessarily with this request.
        self.turns.wait(None, self._begin_next_stranger)

    def _begin_next_stranger(self) -> None:
        self._strangers.pop()()


def fair_arrivals(
    serves_others: Callable[[Hashable], bool], is_overloaded: Callable[[], bool]
) -> Arrivals:
    # Unknown owners are None. Most of PER_TURN_OF_OWNER counts as used for them, so that
    # PER_TURN_OF_STRANGERS is left.
    already_used: dict[Hashable, int] = {None: PER_TURN_OF_OWNER - PER_TURN_OF_STRANGERS}
    turns = FairTurns(PER_TURN, PER_TURN_OF_OWNER, serves_others, already_used)
    return Arrivals(turns, is_overloaded)
