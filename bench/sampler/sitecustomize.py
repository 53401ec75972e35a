"""Samples the stacks of a worker by its CPU time, and writes them when the worker ends.

Python imports this file at its start if the file's folder is on the path, so the program needs no change.
A kernel timer, which counts only the CPU time of the process, sends a signal, and the signal handler
records the stack. Time in which the process waits for a socket or for a core is thus not counted.
"""

import atexit
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

_FILE = os.environ.get("BENCH_SAMPLES")
_WORKER = "tollkeeper.entry.worker"
_INTERVAL_S = 0.001

_stacks: Counter[tuple[object, ...]] = Counter()


def _note(_number: int, frame: FrameType | None) -> None:
    stack = []
    while frame is not None:
        stack.append(frame.f_code)
        frame = frame.f_back
    _stacks[tuple(stack)] += 1


def _write() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    assert _FILE is not None
    with Path(_FILE).open("a") as file:
        for stack, count in _stacks.items():
            frames = [
                f"{code.co_qualname} ({code.co_filename})"  # type: ignore[attr-defined]
                for code in reversed(stack)
            ]
            file.write(f"{';'.join(frames)} {count}\n")


if _FILE is not None and _WORKER in sys.orig_argv:
    signal.signal(signal.SIGPROF, _note)
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)
    atexit.register(_write)
