"""Bounds the bytes of the bodies of all requests under way: in this process, of each organization and of
each key."""

from tollkeeper.domain.access import Caller
from tollkeeper.domain.errors import RateLimited, Unavailable
from tollkeeper.fair_queue import share

_RETRY_AFTER_S = 1


class BodiesInFlight:
    """One organization has at most seven eighths of the room, whatever number of keys it makes. A body
    of the largest size is within every bound."""

    def __init__(self, *, bytes_max: int, key_bytes_max: int, body_bytes_max: int) -> None:
        self._bytes_max = max(bytes_max, body_bytes_max)
        self._organization_bytes_max = max(share(bytes_max), body_bytes_max)
        self._key_bytes_max = max(key_bytes_max, body_bytes_max)
        self._bytes = 0
        # Only those that have a body under way. The hash of an integer is faster than that of an id.
        self._by_organization: dict[int, int] = {}
        self._by_key: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        return self._bytes

    def share_of(self, caller: Caller) -> "BodyShare":
        return BodyShare(self, caller.organization_id.int, caller.key_id.int)

    def take(self, organization: int, key: int, size: int) -> None:
        """Raises RateLimited or Unavailable if there is no room, and then takes nothing."""
        of_key = self._by_key.get(key, 0) + size
        if of_key > self._key_bytes_max:
            raise _too_much_of("key", self._key_bytes_max)
        of_organization = self._by_organization.get(organization, 0) + size
        if of_organization > self._organization_bytes_max:
            raise _too_much_of("organization", self._organization_bytes_max)
        if self._bytes + size > self._bytes_max:
            raise Unavailable(
                "The bodies of all requests under way would exceed what this process may hold.",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._bytes += size
        self._by_key[key] = of_key
        self._by_organization[organization] = of_organization

    def give_back(self, organization: int, key: int, size: int) -> None:
        self._bytes -= size
        _give_back(self._by_key, key, size)
        _give_back(self._by_organization, organization, size)


def _give_back(taken: dict[int, int], owner: int, size: int) -> None:
    rest = taken[owner] - size
    assert rest >= 0, "no more is given back than was taken"
    if rest:
        taken[owner] = rest
    else:
        del taken[owner]


def _too_much_of(owner: str, bytes_max: int) -> RateLimited:
    return RateLimited(
        f"The bodies of this {owner}'s requests under way would exceed {bytes_max} bytes.",
        retry_after_s=_RETRY_AFTER_S,
    )


class BodyShare:
    """What one request has of the bounds. It is given back when the request has ended."""

    __slots__ = ("_bodies", "_key", "_organization", "_size")

    def __init__(self, bodies: BodiesInFlight, organization: int, key: int) -> None:
        self._bodies = bodies
        self._organization = organization
        self._key = key
        self._size = 0

    def grow_to(self, size: int) -> None:
        if size > self._size:
            self._bodies.take(self._organization, self._key, size - self._size)
            self._size = size

    def release(self) -> None:
        if self._size:
            self._bodies.give_back(self._organization, self._key, self._size)
            self._size = 0
