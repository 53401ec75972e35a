"""Tests the worker processes of the supervisor: they load before they are needed, and none is left behind."""

import asyncio
import fcntl
import os
import socket
import time
from pathlib import Path

import psutil
import pytest

from tests.support.processes import workers_of
from tollkeeper.entry.worker_process import received_listener, worker_starter


def _workers() -> list[psutil.Process]:
    return workers_of(psutil.Process(), recursive=True)


def _only_worker() -> psutil.Process:
    """Waits until the child process runs the worker's program, and returns it."""
    until = time.monotonic() + 60
    while len(found := _workers()) != 1 and time.monotonic() < until:
        time.sleep(0.01)
    (worker,) = found
    return worker


def test_a_worker_that_nobody_took_is_gone_with_its_nursery() -> None:
    with worker_starter():
        worker = _only_worker()
    assert not worker.is_running()
    assert _workers() == []


def test_it_is_gone_too_where_the_start_fails() -> None:
    with pytest.raises(ZeroDivisionError), worker_starter():
        worker = _only_worker()
        raise ZeroDivisionError
    assert not worker.is_running()


def test_the_folder_of_the_metrics_is_locked_while_it_is_used() -> None:
    """systemd-tmpfiles takes this lock before it deletes a folder."""
    with worker_starter() as workers:
        descriptor = os.open(workers.metrics_folder, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)


def test_a_worker_that_never_served_leaves_no_metrics() -> None:
    with worker_starter() as workers:
        folder = Path(workers.metrics_folder)
        for name in ("counter_12.db", "gauge_max_12.db", "counter_112.db"):
            (folder / name).touch()
        workers.delete_metrics(12)
        assert [path.name for path in folder.glob("*12.db")] == ["counter_112.db"]


async def test_a_worker_that_cannot_start_ends_and_says_so_by_its_end() -> None:
    with worker_starter() as workers, socket.create_server(("127.0.0.1", 0)) as listener:
        worker = workers.take()
        await worker.start(listener)
        worker.instruct({"kind": "start", "settings": {"nonsense": 1}})
        assert not await worker.becomes_ready(60)
        assert await worker.wait() != 0
        assert not worker.is_running


async def test_a_worker_that_has_ended_leaves_nothing_behind() -> None:
    with worker_starter() as workers, socket.create_server(("127.0.0.1", 0)) as listener:
        process = _only_worker()
        worker = workers.take()
        process.kill()
        # The worker's end of the channel is closed only when the process is gone.
        psutil.wait_procs([process], timeout=60)
        with pytest.raises(OSError):
            await worker.start(listener)
    assert not worker.is_running
    assert _workers() == []


async def test_a_worker_that_is_killed_while_it_loads_is_noticed() -> None:
    with worker_starter() as workers, socket.create_server(("127.0.0.1", 0)) as listener:
        worker = workers.take()
        worker.kill()
        try:
            await worker.start(listener)
        except OSError:
            return  # The worker was gone before it could get the message.
        assert not await worker.becomes_ready(60)
        assert await asyncio.wait_for(worker.wait(), 60) < 0


def test_a_worker_whose_supervisor_is_gone_serves_nobody() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        assert received_listener(theirs) is None


def test_the_socket_arrives() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        socket.send_fds(ours, [b"L"], [listener.fileno()])
        received = received_listener(theirs)
        assert received is not None
        with received:
            assert received.getsockname() == listener.getsockname()
