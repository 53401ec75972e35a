"""After every test of a backend: no task, no socket and no file descriptor is left."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.support.backend_calls import until


def open_files() -> int:
    """Without unix sockets, which no backend has: the database pools of gateways that other tests
    share in this process may still be growing."""
    found = -len(psutil.Process().net_connections("unix"))
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue  # The one that lists the folder.
        # Some event loops hold the first in reserve, for the day when descriptors run out. Pipes lead to
        # programs that other tests keep ready: backends open none.
        if target != "/dev/null" and not target.startswith("pipe:"):
            found += 1
    return found


def other_tasks() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    tasks_before = other_tasks()
    files_before = open_files()
    yield
    await until(lambda: open_files() <= files_before and other_tasks() <= tasks_before)
