"""Decides which connections a server closes if it cannot keep all of them.

A connection without a valid key so far belongs to a network; any other belongs to the organization
of its last valid key. If there is no room for a new connection, the server closes an old one that
waits for its client: first one without a key, then one of the organization with the most
connections.
"""

from collections.abc import Callable, Hashable
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

# One network has at most this fraction (one eighth) of the room for connections without a key.
_NETWORK_PARTS = 8
# The maximum number of connections to check for one that can be closed.
_LOOKS_MAX = 64


C = TypeVar("C")
# The dictionary keeps the oldest connection first.
_Group: TypeAlias = dict[C, None]


class ConnectionRoom(Generic[C]):
    def __init__(self, connections_max: int, close_if_idle: Callable[[C], bool]) -> None:
        """`close_if_idle` closes a connection that waits for its client, and returns whether it
        did."""
        self._max = connections_max
        self._close_if_idle = close_if_idle
        self._of_network_max = max(connections_max // _NETWORK_PARTS, 1)
        self._without_key: _Group[C] = {}
        self._networks: dict[Hashable, _Group[C]] = {}
        self._organizations: dict[Hashable, _Group[C]] = {}
        # The group of each connection: one of the networks' or the organizations' groups, and its
        # key.
        self._places: dict[C, tuple[dict[Hashable, _Group[C]], Hashable]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, connection: C, network: Hashable) -> bool:
        """Returns whether there is room for a new connection, and if so registers it."""
        of_network = self._networks.get(network, {})
        if len(of_network) >= self._of_network_max and not self._close_one(of_network):
            return False
        if len(self._places) >= self._max and not self._close_any():
            return False
        self._without_key[connection] = None
        self._join(connection, self._networks, network)
        return True

    def recognise(self, connection: C, organization: Hashable) -> None:
        """Moves the connection to this organization, whose valid key the client has sent."""
        if connection in self._places:
            self.leave(connection)
            self._join(connection, self._organizations, organization)

    def leave(self, connection: C) -> None:
        place = self._places.pop(connection, None)
        if place is not None:
            groups, name = place
            del groups[name][connection]
            if not groups[name]:
                del groups[name]
            self._without_key.pop(connection, None)

    def _join(self, connection: C, groups: dict[Hashable, _Group[C]], name: Hashable) -> None:
        groups.setdefault(name, {})[connection] = None
        self._places[connection] = (groups, name)

    def _close_any(self) -> bool:
        if self._close_one(self._without_key):
            return True
        largest = max(self._organizations.values(), key=len, default=None)
        return largest is not None and self._close_one(largest)

    def _close_one(self, candidates: _Group[C]) -> bool:
        """Closes the oldest connection that waits for its client, and returns whether there is one.
        Busy ones move to the end, so that the next search begins with others."""
        for connection in list(islice(candidates, _LOOKS_MAX)):
            if self._close_if_idle(connection):
                self.leave(connection)
                return True
            del candidates[connection]
            candidates[connection] = None
        return False
