"""Counts the bytecodes that a worker runs, by function, between a signal and its end.

The interpreter imports this file at its start if its folder is on the path. The count does not depend
on what else the machine does, unlike any time.
"""

import atexit
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_FILE = os.environ.get("BENCH_STEPS")
_WORKER = "tollkeeper.hosting.worker"

_steps: Counter[CodeType] = Counter()
_entries: Counter[CodeType] = Counter()


def _count_step(frame: FrameType, event: str, _argument: object) -> Any:
    if event == "opcode":
        _steps[frame.f_code] += 1
    return _count_step


def _count_entry(frame: FrameType, _event: str, _argument: object) -> Any:
    frame.f_trace_opcodes = True
    frame.f_trace_lines = False
    _entries[frame.f_code] += 1
    return _count_step


def _begin(_number: int, _frame: FrameType | None) -> None:
    _steps.clear()
    _entries.clear()
    sys.settrace(_count_entry)


def _write() -> None:
    sys.settrace(None)
    assert _FILE is not None
    with Path(_FILE).open("w") as file:
        for code, count in _steps.items():
            name = f"{code.co_qualname} ({code.co_filename})"
            file.write(f"{count} {_entries[code]} {name}\n")


if _FILE is not None and _WORKER in sys.orig_argv:
    signal.signal(signal.SIGUSR1, _begin)
    atexit.register(_write)
