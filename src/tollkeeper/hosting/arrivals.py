"""Limits how many requests begin in one iteration of the event loop ("turn").

A client that sends requests over hundreds of connections makes every iteration long, even with
rejected requests, and a call takes more than a dozen iterations. So only a few requests begin in
one iteration, and fewer of one owner while others have calls in progress.
"""

import ipaddress
from collections.abc import Callable, Hashable

from tollkeeper.runtime.fair_queue import FairQueue
from tollkeeper.runtime.fair_turns import FairTurns, Give

PER_TURN = 16
PER_TURN_BESIDE_OTHERS = 4
# The limit for requests of unknown owners. Only the first request of a connection is one, unless
# its client never sends a valid key.
PER_TURN_OF_STRANGERS = 1
# There is one entry for each connection, and those have their own limit.
_STRANGERS_MAX = 1_000_000


class Arrivals:
    """Lets owners take turns for the requests that begin in an iteration. Requests of unknown
    owners share one turn, however many addresses they come from; among them, networks take
    turns."""

    def __init__(self, turns: FairTurns, refuses_soon: Callable[[], bool] = lambda: False) -> None:
        self.turns = turns
        # Tells whether the application is likely to reject new requests.
        self.refuses_soon = refuses_soon
        # Called for every request.
        self.take = turns.take
        self._strangers: FairQueue[Give] = FairQueue(
            items_max=_STRANGERS_MAX, lane_max=_STRANGERS_MAX
        )

    def wait(self, owner: Hashable, begin: Give) -> None:
        """Calls `begin` in one of the next iterations."""
        self.turns.wait(owner, begin)

    def wait_as_stranger(self, address: str, begin: Give) -> None:
        """Does the same for a request of an unknown owner."""
        self._strangers.push(network_of(address), begin)
        # Each of these turns serves the next unknown request, which may be another one.
        self.turns.wait(None, self._begin_next_stranger)

    def _begin_next_stranger(self) -> None:
        self._strangers.pop()()


def network_of(address: str) -> Hashable:
    """Returns the network of one client: an IPv4 address, or an IPv6 network of 2^64 addresses."""
    if ":" not in address:
        return address
    found = ipaddress.IPv6Address(address.partition("%")[0])
    # A dual-stack socket shows an IPv4 address as an IPv6 one.
    return found.packed[:8] if found.ipv4_mapped is None else str(found.ipv4_mapped)


def fair_arrivals(
    serves_others: Callable[[Hashable], bool], refuses_soon: Callable[[], bool]
) -> Arrivals:
    strangers: dict[Hashable, int] = {None: PER_TURN_BESIDE_OTHERS - PER_TURN_OF_STRANGERS}
    turns = FairTurns(PER_TURN, PER_TURN_BESIDE_OTHERS, serves_others, strangers)
    return Arrivals(turns, refuses_soon)
