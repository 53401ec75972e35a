"""Finds the child processes of a process."""

from collections.abc import Callable
from contextlib import suppress

import psutil


def children_of(
    process: psutil.Process | psutil.Popen,
    is_wanted: Callable[[list[str]], bool],
    *,
    recursive: bool = False,
) -> list[psutil.Process]:
    """Returns the live children whose command line is wanted. A child may end during the search."""
    found = []
    for child in process.children(recursive=recursive):
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and is_wanted(child.cmdline()):
                found.append(child)
    return found


def workers_of(
    process: psutil.Process | psutil.Popen, *, recursive: bool = False
) -> list[psutil.Process]:
    """Returns the workers of a gateway."""
    return children_of(process, lambda line: "tollkeeper.entry.worker" in line, recursive=recursive)
