"""Limits the memory of requests in progress: per process and per organization.

A request in progress needs memory for its body, for the decoded texts, and for one more copy of the
texts. At first, this copy is the text for the judge (the model that answers policy questions). Later
it is the request to the backend, until that request is sent.
"""

from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from tollkeeper.api.http.envelope import PayloadTooLarge
from tollkeeper.domain.errors import RateLimited, Unavailable

_RETRY_AFTER_S = 1
# The reserve is the total memory divided by this number. If an organization has only one request, the
# request may exceed the organization's limit, but not use the reserve.
_RESERVE_DIVISOR = 8
# The memory of the Python objects for one element of a JSON array or object. Measurements show 70 to
# 126 bytes.
_ELEMENT_BYTES = 128
# The values of the second to fourth byte of a UTF-8 character.
_CONTINUATIONS = bytes(range(0x80, 0xC0))
# The first bytes of UTF-8 characters that need four bytes in a Python string, and the beginnings of the
# JSON escapes for such characters.
_FOUR_BYTE_STARTS = tuple(bytes([start]) for start in range(0xF0, 0xF5))
_SURROGATES = (b"\\ud", b"\\uD")
_SLICE_BYTES = 32 << 10


class OrganizationMemory:
    """Counts the memory of an organization's requests in progress."""

    __slots__ = ("__weakref__", "bytes", "process")

    def __init__(self, process: "RequestMemory") -> None:
        self.process = process
        self.bytes = 0


class RequestMemory:
    """Counts the memory of all requests in progress in this process.

    All requests of an organization together may use at most as much memory as all requests of the
    process leave free. If an organization has only one request in progress, the request may exceed
    this limit, but it must leave an eighth of the memory (`reserve`) free. So all organizations
    together never use all of the memory.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.reserve = bytes_max // _RESERVE_DIVISOR
        # Up to this sum of all requests, no organization exceeds its limit.
        self.unchecked_bytes_max = bytes_max // 2
        self.bytes = 0
        # An entry disappears when no connection and no request refers to it any more.
        self._organizations: WeakValueDictionary[UUID, OrganizationMemory] = WeakValueDictionary()

    def organization_memory(self, organization_id: UUID) -> OrganizationMemory:
        memory = self._organizations.get(organization_id)
        if memory is None:
            memory = self._organizations[organization_id] = OrganizationMemory(self)
        return memory


class RequestShare(msgspec.Struct):
    """Reserves memory for one request. `release` frees the memory when the request has ended."""

    _organization: OrganizationMemory
    size: int = 0

    def grow_to(self, size: int) -> None:
        """Reserves `size` bytes in total for the request. If there is not enough memory, raises
        PayloadTooLarge, RateLimited or Unavailable, and reserves nothing more."""
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
    """Returns the maximum number of bytes that a request with this body needs. In a Python string,
    the widest character determines how many bytes every character takes. The result is therefore
    computed as if the whole body were one string."""
    # The search for a single byte takes about a tenth of the time. `find` takes less time than `in`, which
    # first tries to convert the bytes to an integer.
    if body.isascii() and (body.find(b"\\") < 0 or body.find(b"\\u") < 0):
        return 3 * len(body) + elements * _ELEMENT_BYTES
    is_wide = any(start in body for start in (*_FOUR_BYTE_STARTS, *_SURROGATES))
    text_bytes = max(len(body), (4 if is_wide else 2) * _characters(body))
    return len(body) + 2 * text_bytes + elements * _ELEMENT_BYTES


def _characters(body: bytes) -> int:
    """Counts the characters of the body. Counts them in slices, so that other threads can run in
    between."""
    return sum(
        len(body[start : start + _SLICE_BYTES].translate(None, _CONTINUATIONS))
        for start in range(0, len(body), _SLICE_BYTES)
    )
