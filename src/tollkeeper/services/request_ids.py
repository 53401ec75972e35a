"""Makes the ids of requests."""

import os
import time
from uuid import UUID

from tollkeeper.domain.months import request_id

_RANDOM_BYTES = 10


def new_request_id() -> UUID:
    """An id that carries the present time of this machine."""
    return request_id(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(_RANDOM_BYTES)))
