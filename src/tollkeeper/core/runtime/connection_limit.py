"""Limits a server's connections, and chooses which one makes room.

Without a valid key yet, a connection counts for its client's network, otherwise for the organization of its
last key. At the limit the server closes one that waits for its client: without a key first, then of the
organization with the most. Failing that, one whose request hasn't begun, of whoever has the most.
"""

import ipaddress
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

# Without a key, from one network: an eighth of the limit.
_NETWORK_DIVISOR = 8
# To find one that can be closed.
_CHECKED_MAX = 64


C = TypeVar("C")
# An ordered set, the oldest first.
_Group: TypeAlias = dict[C, None]


class ConnectionLimit(Generic[C]):
    def __init__(
        self,
        connections_max: int,
        close_if_idle: Callable[[C], bool],
        close_if_waiting: Callable[[C], bool],
    ) -> None:
        """`close_if_idle` closes a connection that waits for its client, and says so; `close_if_waiting` one
        whose request waits for its turn."""
        self._max = connections_max
        self._close_if_idle = close_if_idle
        self._close_if_waiting = close_if_waiting
        self._of_network_max = max(connections_max // _NETWORK_DIVISOR, 1)
        # From all networks.
        self._without_key: _Group[C] = {}
        self._networks: dict[Hashable, _Group[C]] = {}
        self._organizations: dict[Hashable, _Group[C]] = {}
        # By connection: the dictionary with its group (`_networks` or `_organizations`), and the key there.
        self._groups: dict[C, tuple[dict[Hashable, _Group[C]], Hashable]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def enter(self, connection: C, network: Hashable) -> bool:
        """False if there is no room. May close another connection."""
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
        """The client has sent one of its keys."""
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
        # A client whose first request waits has no key yet, so those aren't first here.
        largest = max(_largest(self._networks), _largest(self._organizations), key=len)
        return self._close_one(largest, self._close_if_waiting)

    def _close_one(self, candidates: _Group[C], close: Callable[[C], bool]) -> bool:
        """The oldest that `close` accepts. Others move to the end, so the next search begins elsewhere."""
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
    """The IPv4 address, or the first 64 bits of IPv6. Other texts, which a proxy may have sent, are networks
    of their own."""
    if ":" not in address:
        return address
    try:
        ipv6 = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    # A dual-stack socket reports IPv4 clients like this.
    return ipv6.packed[:8] if ipv6.ipv4_mapped is None else str(ipv6.ipv4_mapped)
