"""Limits the memory of requests in progress, per process and per organization.

A request needs its body, its decoded texts, and one more copy of these: first for the judge, then
as the request to the backend, until that's sent.
"""

from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from tollkeeper.core.errors import RateLimited, Unavailable
from tollkeeper.http.envelope import PayloadTooLarge

_RETRY_AFTER_S = 1
# The reserve is an eighth. An organization's only request may exceed its limit, but not use it.
_RESERVE_DIVISOR = 8
# Of the Python objects for one element of a JSON array or object. We've measured 70 to 126.
_ELEMENT_BYTES = 128
# The second to fourth byte of a UTF-8 character.
_CONTINUATIONS = bytes(range(0x80, 0xC0))
# Begin characters of four bytes in a Python string, in UTF-8 and as JSON escapes.
_FOUR_BYTE_STARTS = tuple(bytes([start]) for start in range(0xF0, 0xF5))
_SURROGATES = (b"\\ud", b"\\uD")
_SLICE_BYTES = 32 << 10


class OrganizationMemory:
    __slots__ = ("__weakref__", "bytes", "process")

    def __init__(self, process: "RequestMemory") -> None:
        self.process = process
        self.bytes = 0


class RequestMemory:
    """An organization's requests may together use as much as all requests of the process leave
    free. An only request may exceed that, but must leave an eighth of the memory (`reserve`) free,
    so all organizations together never use all of it."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.reserve = bytes_max // _RESERVE_DIVISOR
        self.unchecked_bytes_max = bytes_max // 2
        self.bytes = 0
        # An entry stays until no connection and no request refers to it any more.
        self._organizations: WeakValueDictionary[UUID, OrganizationMemory] = WeakValueDictionary()

    def organization_memory(self, organization_id: UUID) -> OrganizationMemory:
        memory = self._organizations.get(organization_id)
        if memory is None:
            memory = self._organizations[organization_id] = OrganizationMemory(self)
        return memory


class RequestShare(msgspec.Struct):
    """`release` frees the memory when the request has ended."""

    _organization: OrganizationMemory
    size: int = 0

    def grow_to(self, size: int) -> None:
        """`size` is the total. Raises PayloadTooLarge, RateLimited or Unavailable without taking
        any more."""
        added = size - self.size
        if added > 0:
            organization = self._organization
            process = organization.process
            process_bytes = process.bytes + added
            if process_bytes > process.unchecked_bytes_max:
                self._require_room(size, added)
            process.bytes = process_bytes
            organization.bytes += added
            self.size = size

    def _require_room(self, size: int, added: int) -> None:
        process = self._organization.process
        if size > process.bytes_max - process.reserve:
            raise PayloadTooLarge("The request needs more memory than one request may use.")
        free = process.bytes_max - process.bytes - added
        organization_bytes = self._organization.bytes + added
        if organization_bytes > free:
            if organization_bytes > size:
                raise RateLimited(
                    "The requests in progress of this organization would need more memory than the "
                    "organization may use.",
                    retry_after_s=_RETRY_AFTER_S,
                )
            if free < process.reserve:
                raise Unavailable(
                    "The requests in progress would need more memory than this process may use.",
                    retry_after_s=_RETRY_AFTER_S,
                )

    def release(self) -> None:
        organization = self._organization
        organization.bytes -= self.size
        organization.process.bytes -= self.size
        self.size = 0
        assert organization.bytes >= 0, "released more than was reserved"


def memory_of(body: bytes, elements: int) -> int:
    """The most it can be: a string's widest character sets the bytes of each of its characters, so
    this counts as if the whole body were one string."""
    # A search for one byte takes a tenth of the time. `in` is slower than `find`: it first tries to
    # convert the bytes to an integer.
    if body.isascii() and (body.find(b"\\") < 0 or body.find(b"\\u") < 0):
        return 3 * len(body) + elements * _ELEMENT_BYTES
    is_wide = any(start in body for start in (*_FOUR_BYTE_STARTS, *_SURROGATES))
    text_bytes = max(len(body), (4 if is_wide else 2) * _characters(body))
    return len(body) + 2 * text_bytes + elements * _ELEMENT_BYTES


def _characters(body: bytes) -> int:
    """In slices, so that other threads can run in between."""
    return sum(
        len(body[start : start + _SLICE_BYTES].translate(None, _CONTINUATIONS))
        for start in range(0, len(body), _SLICE_BYTES)
    )
