"""Bounds the bytes of the bodies of all requests under way, in this process and of each key."""

from tollkeeper.domain.access import KeyId
from tollkeeper.domain.errors import RateLimited, Unavailable

_RETRY_AFTER_S = 1


class BodiesInFlight:
    def __init__(self, *, bytes_max: int, key_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._key_bytes_max = key_bytes_max
        self._bytes = 0
        # Only keys that have a body under way. The hash of an integer is faster than that of an id.
        self._by_key: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        return self._bytes

    def share_of(self, key_id: KeyId) -> "BodyShare":
        return BodyShare(self, key_id.int)

    def take(self, key: int, size: int) -> None:
        """Raises RateLimited or Unavailable if there is no room, and then takes nothing."""
        of_key = self._by_key.get(key, 0) + size
        if of_key > self._key_bytes_max:
            raise RateLimited(
                "The bodies of this key's requests under way would exceed "
                f"{self._key_bytes_max} bytes.",
                retry_after_s=_RETRY_AFTER_S,
            )
        if self._bytes + size > self._bytes_max:
            raise Unavailable(
                "The bodies of all requests under way would exceed what this process may hold.",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._bytes += size
        self._by_key[key] = of_key

    def give_back(self, key: int, size: int) -> None:
        self._bytes -= size
        rest = self._by_key[key] - size
        assert rest >= 0, "no more is given back than was taken"
        if rest:
            self._by_key[key] = rest
        else:
            del self._by_key[key]


class BodyShare:
    """What one request has of the bounds. It is given back when the request has ended."""

    __slots__ = ("_bodies", "_key", "_size")

    def __init__(self, bodies: BodiesInFlight, key: int) -> None:
        self._bodies = bodies
        self._key = key
        self._size = 0

    def grow_to(self, size: int) -> None:
        if size > self._size:
            self._bodies.take(self._key, size - self._size)
            self._size = size

    def release(self) -> None:
        if self._size:
            self._bodies.give_back(self._key, self._size)
            self._size = 0
