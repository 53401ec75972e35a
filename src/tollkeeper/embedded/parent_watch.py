"""Ends a child process with the gateway that started it, for whatever reason. Only the standard library: the
child should import as little as possible."""

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
    """Three ways, because none always works:

    1. The kernel sends a signal, even while a library's loading blocks all Python threads. But also if only
    the parent's thread that started this process ends, and it may refuse.

    2. Standard input closes, unless another child has inherited the other end.

    3. `os.getppid()` changes. A thread polls it.
    """
    # If the kernel refuses, the thread below still watches.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the signal was requested
        os._exit(0)
    threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()


def forbid_core_dumps() -> None:
    """They'd have prompts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def redirected_standard_output() -> int:
    """A copy for the report to the parent. Libraries' output goes to standard error, so it doesn't mix with
    that."""
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
