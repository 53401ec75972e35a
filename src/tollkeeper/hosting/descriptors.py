"""Manages a process's limit of open files and sockets."""

import contextlib
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from tollkeeper.hosting.http_protocol import HttpLimits

# A process that uses more than this fraction of its descriptors has nearly exhausted them.
_NEARLY_ALL = 15 / 16
# How long an idle connection stays open: longer than load balancers keep theirs, because a request
# that arrives while the gateway closes is lost. Google's keep them for 600 s, others for less.
KEEP_ALIVE_S = 620.0
# The maximum number of a worker's client connections, including idle ones. Each takes up to 36 KB,
# so all of them take 360 MB.
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
    """Raises the soft limit of this process and its children to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems have no hard limit, and reject an unlimited soft limit.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def soft_limit() -> int:
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def hard_limit() -> int:
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _number(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def connections_within(limit: int) -> int:
    """Returns how many client connections a process with this limit can have. The other half is for
    connections to backends and the database, and for files."""
    return min(limit // 2, CONNECTIONS_MAX)


def http_limits() -> HttpLimits:
    return HttpLimits(keep_alive_s=KEEP_ALIVE_S, connections_max=connections_within(soft_limit()))


def descriptors_of(pid: int) -> Descriptors | None:
    """Returns None if the process has ended, or if the system does not report it."""
    process = Path("/proc") / str(pid)
    try:
        found = _LIMIT.search((process / "limits").read_text())
        opened = sum(1 for _ in (process / "fd").iterdir())
        return None if found is None else Descriptors(opened, int(found[1]))
    except OSError:
        return None
