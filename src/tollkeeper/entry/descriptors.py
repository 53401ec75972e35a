"""A process's limit of file descriptors."""

import contextlib
import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from tollkeeper.http.http_protocol import HttpLimits

# Beyond this share they're nearly exhausted.
_NEARLY_ALL = 15 / 16
# Longer than common load balancers wait (600 s at Google, less elsewhere), so that they close first: a
# request sent while the gateway closes would be lost.
KEEP_ALIVE_S = 620.0
# Of one worker, with idle ones. Each takes up to 36 KB, so up to 360 MB.
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
    """For this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The hard limit may be unlimited where an unlimited soft one is rejected.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def soft_limit() -> int:
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def hard_limit() -> int:
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _number(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def connections_within(limit: int) -> int:
    """Half of the limit; the rest is for backends, the database and files."""
    return min(limit // 2, CONNECTIONS_MAX)


def http_limits() -> HttpLimits:
    return HttpLimits(keep_alive_s=KEEP_ALIVE_S, connections_max=connections_within(soft_limit()))


def descriptors_of(pid: int) -> Descriptors | None:
    """Number and limit. None if the process has ended or the system doesn't tell."""
    process = Path("/proc") / str(pid)
    try:
        match = _LIMIT.search((process / "limits").read_text())
        opened = len(os.listdir(process / "fd"))  # noqa: PTH208 - no Path objects are needed
        return None if match is None else Descriptors(opened, int(match[1]))
    except OSError:
        return None
