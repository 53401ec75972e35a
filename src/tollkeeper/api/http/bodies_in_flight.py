"""Limits the memory of all requests in progress: in this process, of each organization and of each key."""

from tollkeeper.api.http.envelope import PayloadTooLarge
from tollkeeper.domain.access import Caller
from tollkeeper.domain.errors import RateLimited, Unavailable

_RETRY_AFTER_S = 1
# This part of the room is not for a request that is larger than what it leaves free.
_RESERVE_PARTS = 8


class BodiesInFlight:
    """An organization may have as much as it leaves free, whatever number of keys it creates. The only request
    of an organization or of a key may have more, if it leaves an eighth of the room free. So organizations
    together never get all of the room."""

    def __init__(self, *, bytes_max: int, key_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._reserve = bytes_max // _RESERVE_PARTS
        self._key_bytes_max = key_bytes_max
        self._bytes = 0
        # Only those that have a request in progress. The hash of an integer is faster than that of an id.
        self._by_organization: dict[int, int] = {}
        self._by_key: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        return self._bytes

    def share_of(self, caller: Caller) -> "BodyShare":
        return BodyShare(self, caller.organization_id.int, caller.key_id.int)

    def take(self, organization: int, key: int, before: int, size: int) -> None:
        """Lets a request that has `before` bytes have `size`. If there is no room, raises PayloadTooLarge,
        RateLimited or Unavailable, and takes nothing."""
        if size > self._bytes_max - self._reserve:
            raise PayloadTooLarge("The request needs more memory than one request may use.")
        added = size - before
        free = self._bytes_max - self._bytes - added
        of_key = self._by_key.get(key, 0) + added
        if of_key > self._key_bytes_max and of_key > size:
            raise _too_much_of("key")
        of_organization = self._by_organization.get(organization, 0) + added
        if of_organization > free:
            if of_organization > size:
                raise _too_much_of("organization")
            if free < self._reserve:
                raise Unavailable(
                    "The requests in progress would need more memory than this process may use.",
                    retry_after_s=_RETRY_AFTER_S,
                )
        self._bytes += added
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


def _too_much_of(owner: str) -> RateLimited:
    return RateLimited(
        f"The requests in progress of this {owner} would need more memory than it may use.",
        retry_after_s=_RETRY_AFTER_S,
    )


class BodyShare:
    """The memory that one request may use. It is given back when the request has ended."""

    __slots__ = ("_bodies", "_key", "_organization", "size")

    def __init__(self, bodies: BodiesInFlight, organization: int, key: int) -> None:
        self._bodies = bodies
        self._organization = organization
        self._key = key
        self.size = 0

    def grow_to(self, size: int) -> None:
        if size > self.size:
            self._bodies.take(self._organization, self._key, self.size, size)
            self.size = size

    def release(self) -> None:
        if self.size:
            self._bodies.give_back(self._organization, self._key, self.size)
            self.size = 0
