"""Defines the wall clock as a value that tests can replace."""

import time
from collections.abc import Callable

# Returns Unix seconds.
Clock = Callable[[], int]


def unix_now() -> int:
    return int(time.time())
