"""Makes the ids of requests."""

import os
import time
from uuid import UUID

from tollkeeper.domain.months import request_id, request_id_text

_RANDOM_BYTES = 10


def new_request_id() -> UUID:
    """An id that carries the present time of this machine."""
    return request_id(*_time_and_randomness())


def new_request_id_text() -> str:
    """The same as text: a request needs no UUID object before it becomes a call."""
    return request_id_text(*_time_and_randomness())


def _time_and_randomness() -> tuple[int, int]:
    return time.time_ns() // 1_000_000, int.from_bytes(os.urandom(_RANDOM_BYTES))
