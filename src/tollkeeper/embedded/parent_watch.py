"""Ends a process together with the gateway that started it, in every case.

Uses the standard library only, because such a process imports as little of the gateway as possible.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import threading

_PARENT_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """Ends this process when the parent ends, in three ways, because each of them has a gap.

    The kernel's signal works while a library is loaded and no other Python thread can run, but it
    is sent when the parent's thread ends. The pipe ends with the parent's process, unless a child
    of the parent has inherited the other end. The parent's process id changes in that case too.
    """
    # If the kernel refuses, the thread below still watches the parent.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the signal was requested
        os._exit(0)
    threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()


def forbid_core_dumps() -> None:
    """Disables core dumps, which would contain prompts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def redirected_standard_output() -> int:
    """Returns a private copy of standard output for the report. From then on, libraries that print
    to standard output write to standard error."""
    report = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return report


def _watch_parent(parent_pid: int) -> None:
    standard_input = sys.stdin.fileno()
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([standard_input], [], [], _PARENT_POLL_S)
        if readable and not os.read(standard_input, 4096):
            break
    os._exit(0)
