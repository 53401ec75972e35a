"""How many requests begin in one turn of the event loop.

Whoever sends requests over hundreds of connections makes every turn long, even by requests that are
refused, and a call takes more than a dozen turns. So only a few begin in one turn, and of one owner
fewer while others have calls in progress.
"""

import ipaddress
from collections.abc import Callable, Hashable

from tollkeeper.fair_queue import FairQueue
from tollkeeper.fair_turns import FairTurns, Give

PER_TURN = 16
PER_TURN_BESIDE_OTHERS = 4
# Of requests of which nobody knows for whom they are. Only the first request of a connection is such a
# one, unless it sends nothing that anybody has a key for.
PER_TURN_OF_STRANGERS = 1
# One entry for each connection; the limit of connections bounds those.
_STRANGERS_MAX = 1_000_000


class Arrivals:
    """Owners take turns for what begins in a turn of the loop. Requests of which nobody knows yet for
    whom they are have one turn together, however many addresses they come from; among them, networks
    take turns."""

    def __init__(self, turns: FairTurns, refuses_soon: Callable[[], bool] = lambda: False) -> None:
        self.turns = turns
        # Whether the application is likely to refuse what arrives.
        self.refuses_soon = refuses_soon
        # Asked for every request.
        self.take = turns.take
        self._strangers: FairQueue[Give] = FairQueue(
            items_max=_STRANGERS_MAX, lane_max=_STRANGERS_MAX
        )

    def wait(self, owner: Hashable, begin: Give) -> None:
        """`begin` is called in one of the next turns of the loop."""
        self.turns.wait(owner, begin)

    def wait_as_stranger(self, address: str, begin: Give) -> None:
        """The same for a request of which nobody knows for whom it is."""
        self._strangers.push(network_of(address), begin)
        # Each of these turns is for the next of all strangers, who may be another one than this.
        self.turns.wait(None, self._begin_next_stranger)

    def _begin_next_stranger(self) -> None:
        self._strangers.pop()()


def network_of(address: str) -> Hashable:
    """What one caller has: an address of IPv4, or the 2^64 addresses of a network of IPv6."""
    if ":" not in address:
        return address
    found = ipaddress.IPv6Address(address.partition("%")[0])
    # A socket for both kinds shows an address of IPv4 as one of IPv6.
    return found.packed[:8] if found.ipv4_mapped is None else str(found.ipv4_mapped)


def fair_arrivals(
    serves_others: Callable[[Hashable], bool], refuses_soon: Callable[[], bool]
) -> Arrivals:
    strangers: dict[Hashable, int] = {None: PER_TURN_BESIDE_OTHERS - PER_TURN_OF_STRANGERS}
    turns = FairTurns(PER_TURN, PER_TURN_BESIDE_OTHERS, serves_others, strangers)
    return Arrivals(turns, refuses_soon)
