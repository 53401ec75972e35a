"""Starts worker processes for the supervisor, and exchanges messages with them over a socket pair.

Importing modules takes most of a worker's start time. So the first worker process is created, and begins
its imports, while the supervisor still reads the settings. To create that process early, this module
imports only modules that load fast. A worker begins to serve when the supervisor sends the instruction
`start`.

Over the channel, the supervisor sends the listening socket and then instructions, one line of JSON
each. The worker sends reports, also one line of JSON each. The first report means that the worker
serves. If the channel closes, the process at its other end has ended.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tollkeeper.hosting.descriptors import raise_limit

_POLL_S = 0.02
_LISTENER = b"L"
# The interval at which a worker sends reports.
REPORT_INTERVAL_S = 1.0
# A worker that could not write a hold (the amount reserved before a call) for this time counts as unable
# to serve calls.
_HOLD_AGE_S_MAX = 6.0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Tells whether the worker can write holds, according to `services.ledger.hold_writes`."""

    # Seconds from the last time that the worker wrote a hold, or checked that it could write one, to
    # this report; None if never.
    written_s_ago: float | None
    # The reason why the worker's last attempt failed; None if it succeeded.
    failure: str | None
    received_at: float = field(default_factory=time.monotonic)

    @property
    def problem(self) -> str | None:
        """Explains why a call to this worker would fail now. Returns None if the worker's last attempt to write
        a hold succeeded, at most `_HOLD_AGE_S_MAX` seconds ago."""
        if self.failure is not None:
            return self.failure
        # A stuck worker sends no reports, so the time since the last report is added.
        silent_s = time.monotonic() - self.received_at
        if self.written_s_ago is None or self.written_s_ago + silent_s > _HOLD_AGE_S_MAX:
            return f"no hold could be written in the last {_HOLD_AGE_S_MAX:.0f} s"
        return None


class WorkerProcess:
    def __init__(self, metrics_folder: str) -> None:
        self._channel, worker_end = socket.socketpair()
        with worker_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tollkeeper.worker", str(worker_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(worker_end.fileno(),),
                env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": metrics_folder},
                # A terminal sends the SIGINT of Ctrl-C to its foreground process group. A worker
                # has its own session and group, so only the supervisor receives the signal.
                start_new_session=True,
            )
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.report = WorkerReport(None, None)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    async def start(self, listener: socket.socket) -> None:
        """Sends the listening socket. The worker then waits for the instruction `start`. If the process has
        already ended, cleans up after it and raises OSError."""
        try:
            socket.send_fds(self._channel, [_LISTENER], [listener.fileno()])
            self._reader, self._writer = await asyncio.open_connection(sock=self._channel)
        except OSError:
            self.discard()
            raise

    def instruct(self, instruction: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(instruction).encode() + b"\n")

    async def becomes_ready(self, within_s: float) -> bool:
        """Waits until the worker serves. Returns False if its process has ended. Kills a process that is
        not ready after `within_s`, and returns False."""
        assert self._reader is not None
        try:
            return await asyncio.wait_for(self._receive(self._reader), within_s)
        except TimeoutError:
            self.kill()
        except ConnectionError:
            pass
        return False

    async def _receive(self, reader: asyncio.StreamReader) -> bool:
        """Reads the next report. Returns False if the channel is closed."""
        line = await reader.readline()
        if not line.endswith(b"\n"):
            return False
        self.report = WorkerReport(**json.loads(line))
        return True

    async def wait(self) -> int:
        """Waits until the process has ended and returns its exit code."""
        assert self._reader is not None
        assert self._writer is not None
        with contextlib.suppress(ConnectionError):
            while await self._receive(self._reader):
                pass
        self._writer.close()
        # The worker closes the channel shortly before its process exits. The exit itself is polled.
        while (code := self._process.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def discard(self) -> None:
        """Terminates a process that has received no instruction, and waits until it has ended."""
        self._channel.close()
        self._process.terminate()
        self._process.wait()


class WorkerStarter:
    """Creates worker processes. The first process is created in the constructor, so that its imports begin
    early."""

    def __init__(self, metrics_folder: str) -> None:
        # The folder in which the workers write their metrics.
        self.metrics_folder = metrics_folder
        self._loading: WorkerProcess | None = WorkerProcess(metrics_folder)

    def take(self) -> WorkerProcess:
        worker, self._loading = self._loading, None
        return worker or WorkerProcess(self.metrics_folder)

    def delete_metrics(self, pid: int) -> None:
        """Deletes the metrics of a worker that never served. Otherwise a worker that fails at its start again
        and again would fill the disk."""
        for path in Path(self.metrics_folder).glob(f"*_{pid}.db"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._loading is not None:
            self._loading.discard()


@contextmanager
def worker_starter() -> Iterator[WorkerStarter]:
    with (
        tempfile.TemporaryDirectory(prefix="tollkeeper-metrics-") as metrics_folder,
        _locked_folder(metrics_folder),
    ):
        # The limit of open files is raised before the first process is created, because child processes
        # inherit the limit.
        raise_limit()
        starter = WorkerStarter(metrics_folder)
        try:
            yield starter
        finally:
            starter.close()


@contextmanager
def _locked_folder(folder: str) -> Iterator[None]:
    """Locks a folder, so that systemd-tmpfiles does not delete it after days without changes. Without its
    folder, no worker could start."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def received_listener(channel: socket.socket) -> socket.socket | None:
    """Waits for the listening socket; called in the worker. Returns None if the supervisor has ended."""
    data, descriptors, _, _ = socket.recv_fds(channel, len(_LISTENER), 1)
    if data != _LISTENER:
        return None
    listener = socket.socket(fileno=descriptors[0])
    listener.setblocking(False)
    return listener
