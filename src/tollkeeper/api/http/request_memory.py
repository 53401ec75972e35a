"""Limits the memory of requests in progress: per process, per organization and per key.

A call in progress needs memory for its body, for the decoded texts, and for one more copy: first the
text for the judge model, and then the request to the backend until it is sent.
"""

from uuid import UUID
from weakref import WeakValueDictionary

from tollkeeper.api.http.envelope import PayloadTooLarge
from tollkeeper.domain.access import Caller
from tollkeeper.domain.errors import RateLimited, Unavailable

_RETRY_AFTER_S = 1
# If an organization has only one request, it may exceed the organization's share, but must leave
# one of this many parts of the memory free.
_RESERVE_PARTS = 8
# The memory of the objects for one element of an array or object. Measured: 70 to 126.
_ELEMENT_BYTES = 128
# The second to fourth byte of a UTF-8 character, and the first byte of a character that needs four
# bytes in a Python string.
_CONTINUATIONS = bytes(range(0x80, 0xC0))
_FOUR_BYTE_STARTS = tuple(bytes([start]) for start in range(0xF0, 0xF5))
_SURROGATES = (b"\\ud", b"\\uD")
_SLICE_BYTES = 32 << 10


class _Account:
    """Counts the memory of an organization's requests in progress."""

    __slots__ = ("__weakref__", "bytes")

    def __init__(self) -> None:
        self.bytes = 0


class KeyAccount(_Account):
    """Counts the memory of a key's requests in progress."""

    __slots__ = ("bodies", "organization")

    def __init__(self, bodies: "BodiesInFlight", organization: _Account) -> None:
        super().__init__()
        self.bodies = bodies
        self.organization = organization


class BodiesInFlight:
    """Lets an organization use at most as much memory as it leaves free, over all its keys. The
    only request of an organization or key may exceed that, if it leaves an eighth of the memory
    free. So organizations together never use all of the memory."""

    def __init__(self, *, bytes_max: int, key_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.reserve = bytes_max // _RESERVE_PARTS
        self.key_bytes_max = key_bytes_max
        self.bytes = 0
        # Contains only accounts that a connection or a request refers to.
        self._organizations: WeakValueDictionary[UUID, _Account] = WeakValueDictionary()
        self._keys: WeakValueDictionary[UUID, KeyAccount] = WeakValueDictionary()

    def account_of(self, caller: Caller) -> KeyAccount:
        account = self._keys.get(caller.key_id)
        if account is None:
            organization = self._organizations.get(caller.organization_id)
            if organization is None:
                organization = self._organizations[caller.organization_id] = _Account()
            account = self._keys[caller.key_id] = KeyAccount(self, organization)
        return account


class BodyShare:
    """Holds the memory that one request may use. It is released when the request has ended."""

    __slots__ = ("_account", "size")

    def __init__(self, account: KeyAccount) -> None:
        self._account = account
        self.size = 0

    def grow_to(self, size: int) -> None:
        """Gives the request `size` bytes. If there is no room, raises PayloadTooLarge, RateLimited
        or Unavailable, and reserves nothing."""
        added = size - self.size
        if added <= 0:
            return
        key = self._account
        bodies, organization = key.bodies, key.organization
        if (
            key.bytes + added > bodies.key_bytes_max
            # The organization would use more than it leaves free. This is also true if a single
            # request is too large.
            or organization.bytes + bodies.bytes + 2 * added > bodies.bytes_max
        ):
            self._require_room(size, added)
        bodies.bytes += added
        key.bytes += added
        organization.bytes += added
        self.size = size

    def _require_room(self, size: int, added: int) -> None:
        key = self._account
        bodies, organization = key.bodies, key.organization
        if size > bodies.bytes_max - bodies.reserve:
            raise PayloadTooLarge("The request needs more memory than one request may use.")
        of_key = key.bytes + added
        if of_key > bodies.key_bytes_max and of_key > size:
            raise _too_much_of("key")
        free = bodies.bytes_max - bodies.bytes - added
        of_organization = organization.bytes + added
        if of_organization > free:
            if of_organization > size:
                raise _too_much_of("organization")
            if free < bodies.reserve:
                raise Unavailable(
                    "The requests in progress would need more memory than this process may use.",
                    retry_after_s=_RETRY_AFTER_S,
                )

    def release(self) -> None:
        size, self.size, key = self.size, 0, self._account
        key.bytes -= size
        key.organization.bytes -= size
        key.bodies.bytes -= size
        assert key.bytes >= 0, "released more than was reserved"


def _too_much_of(owner: str) -> RateLimited:
    return RateLimited(
        f"The requests in progress of this {owner} would need more memory than it may use.",
        retry_after_s=_RETRY_AFTER_S,
    )


def memory_of(body: bytes, elements: int) -> int:
    """Returns the maximum bytes that a request with this body needs. Assumes that the body is
    a single text, because the widest character of a Python string determines how many bytes each
    of its characters takes."""
    size = text_bytes = len(body)
    if not body.isascii() or b"\\u" in body:
        is_wide = any(start in body for start in (*_FOUR_BYTE_STARTS, *_SURROGATES))
        text_bytes = max(size, (4 if is_wide else 2) * _characters(body))
    return size + 2 * text_bytes + elements * _ELEMENT_BYTES


def _characters(body: bytes) -> int:
    """Counts in slices, so that a thread releases the interpreter in between."""
    return sum(
        len(body[start : start + _SLICE_BYTES].translate(None, _CONTINUATIONS))
        for start in range(0, len(body), _SLICE_BYTES)
    )
