"""Ends a child process when the gateway that started it ends, for whatever reason.

This module imports only the standard library, because the child process should import as little of the
gateway as possible.
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
    """Ends this process when its parent ends. Uses three methods, because none of them always works:

    1. The kernel sends a signal when the parent ends. This works even while a library is being loaded and
       blocks all Python threads. But the kernel also sends the signal if only the parent's thread that
       started this process ends, and it may reject the request for the signal.
    2. Standard input is closed when the parent ends, unless another child of the parent has inherited the
       other end of the pipe.
    3. `os.getppid()` returns another process id after the parent has ended. A thread polls it.
    """
    # If the kernel rejects the request for a signal, the thread below still watches the parent.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the signal was requested
        os._exit(0)
    threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()


def forbid_core_dumps() -> None:
    """Disables core dumps, which would contain prompts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def redirected_standard_output() -> int:
    """Returns a copy of the standard output's descriptor, for the report to the parent. Redirects standard
    output to standard error, so that the output of libraries does not mix with the report."""
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
