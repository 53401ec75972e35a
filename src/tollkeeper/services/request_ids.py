"""Makes the ids of requests."""

import os
import struct
import time
from uuid import UUID

from tollkeeper.domain.months import request_id, request_id_text

# So many random numbers of 80 bits are taken from the operating system at once: asking takes longer
# than all the rest.
_NUMBERS = struct.Struct(256 * "10s")

_unused: list[int] = []


def new_request_id() -> UUID:
    """An id that carries the present time of this machine."""
    return request_id(time.time_ns() // 1_000_000, _randomness())


def new_request_id_text() -> str:
    """The same as text: a request needs no UUID object before it becomes a call."""
    return request_id_text(time.time_ns() // 1_000_000, _randomness())


def _randomness() -> int:
    """A number that is used for one id only."""
    if not _unused:
        _unused.extend(map(int.from_bytes, _NUMBERS.unpack(os.urandom(_NUMBERS.size))))
    return _unused.pop()


# A process that is forked must not use the numbers of its parent.
os.register_at_fork(after_in_child=_unused.clear)
