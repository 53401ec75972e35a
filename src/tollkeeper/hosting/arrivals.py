"""Limits how many requests begin in one iteration of the event loop (called "turn" here).

If a client sends requests over hundreds of connections, every iteration takes long, even if the
requests are rejected. Other clients suffer, because each call needs more than a dozen iterations. So
only a few requests begin in one iteration. For one owner (usually an organization), even fewer begin
while other owners have calls in progress.
"""

from collections.abc import Callable, Hashable

from tollkeeper.runtime.connection_limit import network_of
from tollkeeper.runtime.fair_queue import Callback, FairQueue, FairTurns

# The maximum number of requests that begin in one iteration.
PER_TURN = 16
# The limit for the requests of one owner, while other owners have calls in progress.
PER_TURN_OF_OWNER = 4
# The limit for all requests of unknown owners ("strangers") together, while a call is in progress. An owner
# is unknown until the connection has had a request with a valid key.
PER_TURN_OF_STRANGERS = 1
# Hardly ever reached. The queue has at most one entry for each open connection, and `ConnectionLimit` limits
# their number. It also has the entries of connections that were closed while they waited; these entries
# leave the queue when it is their turn.
_STRANGERS_MAX = 1_000_000


class Arrivals:
    """Decides which requests begin in an iteration of the event loop.

    Owners are served round-robin. All requests of unknown owners count as one owner, from however many
    addresses they come. Within this group, networks are served round-robin.
    """

    def __init__(self, turns: FairTurns, is_overloaded: Callable[[], bool] = lambda: False) -> None:
        self.turns = turns
        # Tells whether the application is overloaded, so that it rejects most calls immediately.
        self._is_overloaded = is_overloaded
        # `take` tells whether a request of an owner may begin in this iteration. `wait` calls a callback in
        # one of the next iterations, when it is its owner's turn. `count` counts a request that began
        # without `take`.
        self.take = turns.take
        self.wait = turns.wait
        self.count = turns.count
        self._strangers: FairQueue[Callback] = FairQueue(
            items_max=_STRANGERS_MAX, lane_max=_STRANGERS_MAX
        )

    def probably_rejects(self, owner: Hashable) -> bool:
        """Tells whether the application will probably reject the next request of this owner immediately.
        Such a request may begin before its turn, because rejecting it takes little more time than queueing
        it. But an overloaded application still serves some requests, for example with admin keys. An owner
        that has used up its limit with such requests has to wait."""
        return owner is not None and self._is_overloaded() and not self.turns.exceeds(owner)

    def wait_as_stranger(self, address: str, begin: Callback) -> None:
        """Works like `wait`, for a request of an unknown owner."""
        self._strangers.push(network_of(address), begin)
        # The callback begins the next request in `_strangers`, which is not necessarily this request.
        self.turns.wait(None, self._begin_next_stranger)

    def _begin_next_stranger(self) -> None:
        self._strangers.pop()()


def fair_arrivals(
    serves_others: Callable[[Hashable], bool], is_overloaded: Callable[[], bool]
) -> Arrivals:
    # Requests of unknown owners have the owner None. A part of the limit PER_TURN_OF_OWNER counts as
    # already used for them in every iteration, so that PER_TURN_OF_STRANGERS is left.
    already_used: dict[Hashable, int] = {None: PER_TURN_OF_OWNER - PER_TURN_OF_STRANGERS}
    turns = FairTurns(PER_TURN, PER_TURN_OF_OWNER, serves_others, already_used)
    return Arrivals(turns, is_overloaded)
