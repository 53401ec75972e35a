"""Checks after every backend test that no task, socket or file descriptor is left."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.support.backend_calls import until

# Targets of file descriptors that no backend opens. Gateways and programs that other tests share in
# this process have them. Some event loops keep /dev/null open in case the descriptors run out.
_OF_OTHERS = ("/dev/null", "pipe:", "anon_inode:")
# Folders with the code of backends' tasks and of the servers that the tests run.
_OWN_CODE = ("/tollkeeper/backends/", "/tests/")


def open_files() -> set[tuple[int, str]]:
    """Returns each file descriptor of this process with its target."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        # The descriptor that listed the folder is already closed.
        with contextlib.suppress(OSError):
            found.add((int(entry.name), str(entry.readlink())))
    return found


def new_files(before: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Returns the new descriptors without Unix sockets. Backends have none, but the database pools of gateways
    that other tests share in this process may open some."""
    unix = {connection.fd for connection in psutil.Process().net_connections("unix")}
    new = open_files() - before
    return {
        (fd, target) for fd, target in new if fd not in unix and not target.startswith(_OF_OTHERS)
    }


def own_tasks() -> set[asyncio.Task[object]]:
    """Returns the tasks of backends and tests, without the tasks of gateways that other tests share."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return {task for task in others if any(part in _file_of(task) for part in _OWN_CODE)}


def _file_of(task: asyncio.Task[object]) -> str:
    code = getattr(task.get_coro(), "cr_code", None)
    return "/tests/" if code is None else str(code.co_filename)


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    tasks_before = own_tasks()
    files_before = open_files()
    yield
    try:
        await until(lambda: not new_files(files_before) and own_tasks() <= tasks_before)
    except TimeoutError:
        files = new_files(files_before)
        numbers = {fd for fd, _ in files}
        sockets = [one for one in psutil.Process().net_connections() if one.fd in numbers]
        left = (files, sockets, own_tasks() - tasks_before)
        pytest.fail(f"Left by the test: {left}")
