"""The wall clock, passed as an argument so tests can replace it."""

import time
from collections.abc import Callable

# In Unix seconds.
Clock = Callable[[], int]


def unix_now() -> int:
    return int(time.time())
