"""Creates request ids."""

import os
import re
import time
from uuid import UUID

from tollkeeper.domain.months import id_of_text

# Random endings are created in groups of this size, because asking the operating system takes
# longer than everything else. An ending has 10 bytes, of which 4 bits are the version and 2 bits
# the variant of a UUID.
_ENDINGS = 256
_RANDOM_BITS = int.from_bytes(bytes.fromhex("0fff3fffffffffffffff") * _ENDINGS)
_FIXED_BITS = int.from_bytes(bytes.fromhex("70008000000000000000") * _ENDINGS)
_GROUPS = re.compile("(.{4})(.{4})(.{12})")

_unused: list[str] = []


def new_request_id() -> UUID:
    """Returns an id that contains this machine's current time."""
    return id_of_text(new_request_id_text())


def new_request_id_text() -> str:
    """Returns the id as text, because a request needs no UUID object before it becomes a call."""
    if not _unused:
        random = int.from_bytes(os.urandom(10 * _ENDINGS)) & _RANDOM_BITS
        endings = (random | _FIXED_BITS).to_bytes(10 * _ENDINGS).hex()
        _unused.extend(map("-".join, _GROUPS.findall(endings)))
    now = f"{time.time_ns() // 1_000_000:012x}"
    return f"{now[:8]}-{now[8:]}-{_unused.pop()}"


# A forked process must not use the numbers of its parent.
os.register_at_fork(after_in_child=_unused.clear)
