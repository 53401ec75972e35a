"""Describes the machine of a run, and ends the run on a signal."""

import os
import platform
import sys
from types import FrameType

from bench.interpreters import own_build


def describe_machine() -> str:
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), "
        f"Python {platform.python_version()} {own_build()}, "
        f"load before the run {load:.1f}"
    )


def exit_on_signal(number: int, _frame: FrameType | None) -> None:
    """Exits, so that SIGTERM stops all started processes as Ctrl-C does."""
    sys.exit(128 + number)
