"""Limits the number of a server's connections, and chooses which connection is closed for a new one.

A connection on which the client has sent no valid key yet counts for the client's network. Any other
connection counts for the organization of its last valid key. If the limit is reached, the server closes
a connection that waits for its client. It prefers connections without a key, and then those of the
organization with the most connections. If there is no such connection, the server closes a connection
whose request has not begun, of the organization or network with the most connections.
"""

import ipaddress
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

# Connections without a key from one network may use at most one eighth of the limit.
_NETWORK_DIVISOR = 8
# The maximum number of connections that are checked to find one that can be closed.
_CHECKED_MAX = 64


C = TypeVar("C")
# The connections of a group, the oldest first. Used as an ordered set.
_Group: TypeAlias = dict[C, None]


class ConnectionLimit(Generic[C]):
    def __init__(
        self,
        connections_max: int,
        close_if_idle: Callable[[C], bool],
        close_if_waiting: Callable[[C], bool],
    ) -> None:
        """`close_if_idle` closes a connection that waits for its client, and returns True. For any other
        connection it does nothing and returns False. `close_if_waiting` does the same for a connection
        whose request waits for its turn."""
        self._max = connections_max
        self._close_if_idle = close_if_idle
        self._close_if_waiting = close_if_waiting
        self._of_network_max = max(connections_max // _NETWORK_DIVISOR, 1)
        # All connections without a key, from all networks.
        self._without_key: _Group[C] = {}
        self._networks: dict[Hashable, _Group[C]] = {}
        self._organizations: dict[Hashable, _Group[C]] = {}
        # The group of each connection, as the dictionary that contains the group (`_networks` or
        # `_organizations`) and the group's key in it.
        self._groups: dict[C, tuple[dict[Hashable, _Group[C]], Hashable]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def enter(self, connection: C, network: Hashable) -> bool:
        """Registers a new connection, and returns True; returns False if there is no room for it. May close
        another connection to make room."""
        of_network = self._networks.get(network, {})
        if len(of_network) >= self._of_network_max and not self._close_one(
            of_network, self._close_if_idle
        ):
            return False
        if len(self._groups) >= self._max and not self._close_any():
            return False
        self._without_key[connection] = None
        self._join(connection, self._networks, network)
        return True

    def recognise(self, connection: C, organization: Hashable) -> None:
        """Counts the connection for this organization from now on, because the client has sent one of the
        organization's keys."""
        if connection in self._groups:
            self.leave(connection)
            self._join(connection, self._organizations, organization)

    def leave(self, connection: C) -> None:
        group = self._groups.pop(connection, None)
        if group is not None:
            groups, name = group
            members = groups[name]
            del members[connection]
            if not members:
                del groups[name]
            self._without_key.pop(connection, None)

    def _join(self, connection: C, groups: dict[Hashable, _Group[C]], name: Hashable) -> None:
        groups.setdefault(name, {})[connection] = None
        self._groups[connection] = (groups, name)

    def _close_any(self) -> bool:
        if self._close_one(self._without_key, self._close_if_idle):
            return True
        if self._close_one(_largest(self._organizations), self._close_if_idle):
            return True
        # A client whose first request waits has no key yet. So here, connections without a key are not
        # closed first.
        largest = max(_largest(self._networks), _largest(self._organizations), key=len)
        return self._close_one(largest, self._close_if_waiting)

    def _close_one(self, candidates: _Group[C], close: Callable[[C], bool]) -> bool:
        """Closes the oldest candidate that `close` accepts, and returns True if there is one. Moves other
        connections to the end, so that the next search begins with other connections."""
        for connection in list(islice(candidates, _CHECKED_MAX)):
            if close(connection):
                self.leave(connection)
                return True
            del candidates[connection]
            candidates[connection] = None
        return False


def _largest(groups: dict[Hashable, _Group[C]]) -> _Group[C]:
    return max(groups.values(), key=len, default={})


def network_of(address: str) -> Hashable:
    """Returns the network of a client: its IPv4 address, or the first 64 bits of its IPv6 address. Other
    texts, which a proxy may have sent, are networks of their own."""
    if ":" not in address:
        return address
    try:
        ipv6 = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    # A dual-stack socket reports an IPv4 client with an IPv6 address that contains the IPv4 address.
    return ipv6.packed[:8] if ipv6.ipv4_mapped is None else str(ipv6.ipv4_mapped)
