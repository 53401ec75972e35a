"""Creates request ids: UUIDs of version 7, which begin with the time."""

import os
from binascii import hexlify
from struct import Struct
from time import time_ns
from uuid import UUID

from tollkeeper.core.months import id_of_text

# Random endings made at once, because asking the operating system takes longer than all the rest.
# An ending has 10 bytes: 4 bits are the version, 2 the variant, and the others are random.
_ENDINGS_PER_GROUP = 256
_RANDOM_BITS = int.from_bytes(bytes.fromhex("0fff3fffffffffffffff") * _ENDINGS_PER_GROUP)
_FIXED_BITS = int.from_bytes(bytes.fromhex("70008000000000000000") * _ENDINGS_PER_GROUP)
# Of an ending, between its hyphens.
_PARTS = Struct("4s4s12s")

_unused_endings: list[str] = []


def new_request_id() -> UUID:
    return id_of_text(new_request_id_text())


def new_request_id_text() -> str:
    """A request needs no UUID object until it becomes a call."""
    if not _unused_endings:
        random = int.from_bytes(os.urandom(10 * _ENDINGS_PER_GROUP)) & _RANDOM_BITS
        endings = hexlify((random | _FIXED_BITS).to_bytes(10 * _ENDINGS_PER_GROUP))
        parts = b" ".join(map(b"-".join, _PARTS.iter_unpack(endings)))
        _unused_endings.extend(parts.decode().split(" "))
    time_ms = "%012x" % (time_ns() // 1_000_000)
    return f"{time_ms[:8]}-{time_ms[8:]}-{_unused_endings.pop()}"


# A forked process mustn't use its parent's endings.
os.register_at_fork(after_in_child=_unused_endings.clear)
