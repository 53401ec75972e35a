"""Defines the type of the wall clock. Services get the clock as an argument, so that tests can
replace it."""

import time
from collections.abc import Callable

# A function that returns the current time in Unix seconds.
Clock = Callable[[], int]


def unix_now() -> int:
    return int(time.time())
