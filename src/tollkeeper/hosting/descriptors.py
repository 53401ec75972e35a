"""Manages a process's limit of file descriptors, which open files and connections use."""

import contextlib
import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from tollkeeper.hosting.http_protocol import HttpLimits

# A process that uses more than this fraction of its descriptors has nearly exhausted them.
_NEARLY_ALL = 15 / 16
# The time after which the gateway closes an idle connection. It is longer than the idle timeouts of
# common load balancers (600 s at Google, less at others), so that the balancer closes first. If the
# gateway closed first, a request that the balancer sends at the same moment would be lost.
KEEP_ALIVE_S = 620.0
# The maximum number of client connections of one worker, including idle ones. A connection takes up to
# 36 KB of memory, so 10,000 take up to 360 MB.
CONNECTIONS_MAX = 10_000
_LIMIT = re.compile(r"^Max open files +(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Descriptors:
    open: int
    limit: int

    @property
    def are_nearly_exhausted(self) -> bool:
        return self.open > _NEARLY_ALL * self.limit


def raise_limit() -> None:
    """Sets the soft limit of this process and its children to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # On some systems the hard limit is unlimited, but an unlimited soft limit is rejected.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def soft_limit() -> int:
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def hard_limit() -> int:
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _number(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def connections_within(limit: int) -> int:
    """Returns the number of client connections for a process with this limit: half of the limit, and at
    most `CONNECTIONS_MAX`. The other half is for connections to backends and the database, and for files.
    """
    return min(limit // 2, CONNECTIONS_MAX)


def http_limits() -> HttpLimits:
    return HttpLimits(keep_alive_s=KEEP_ALIVE_S, connections_max=connections_within(soft_limit()))


def descriptors_of(pid: int) -> Descriptors | None:
    """Returns the number and limit of a process's descriptors. Returns None if the process has ended, or
    if the operating system does not report them."""
    process = Path("/proc") / str(pid)
    try:
        match = _LIMIT.search((process / "limits").read_text())
        opened = len(os.listdir(process / "fd"))  # noqa: PTH208 - no Path objects are needed
        return None if match is None else Descriptors(opened, int(match[1]))
    except OSError:
        return None
