"""Starts worker processes, and exchanges messages with them over a socket pair.

Imports take most of a worker's start, so the first process begins them while the supervisor still reads the
settings. Hence this module imports only what loads fast. A worker serves when it's told to `start`.

The supervisor sends the listening socket, then instructions; the worker sends reports, the first once it
serves. Both are lines of JSON. A closed channel means that the other process has ended.
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

from tollkeeper.entry.descriptors import raise_limit

_POLL_S = 0.02
_LISTENER = b"L"
# Of reports.
REPORT_INTERVAL_S = 1.0
# Without a hold written for this long, a worker can't serve.
_HOLD_AGE_S_MAX = 6.0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """See `money.hold_writes`."""

    # Or checked that it could; None: never.
    written_s_ago: float | None
    # Of the last attempt; None: it succeeded.
    failure: str | None
    received_at: float = field(default_factory=time.monotonic)

    @property
    def problem(self) -> str | None:
        """Why a call would fail now; None if the last attempt succeeded, at most `_HOLD_AGE_S_MAX` ago."""
        if self.failure is not None:
            return self.failure
        # A stuck worker sends no reports.
        silent_s = time.monotonic() - self.received_at
        if self.written_s_ago is None or self.written_s_ago + silent_s > _HOLD_AGE_S_MAX:
            return f"no hold could be written in the last {_HOLD_AGE_S_MAX:.0f} s"
        return None


class WorkerProcess:
    def __init__(self, metrics_folder: str) -> None:
        self._channel, worker_end = socket.socketpair()
        with worker_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tollkeeper.entry.worker", str(worker_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(worker_end.fileno(),),
                env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": metrics_folder},
                # A terminal's Ctrl-C goes to its foreground group; only the supervisor should get it.
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
        """The worker then waits for `start`. Raises OSError, after cleaning up, if the process has ended."""
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
        """False if it ended, or was killed because it took too long."""
        assert self._reader is not None
        try:
            return await asyncio.wait_for(self._receive(self._reader), within_s)
        except TimeoutError:
            self.kill()
        except ConnectionError:
            pass
        return False

    async def _receive(self, reader: asyncio.StreamReader) -> bool:
        """False if the channel is closed."""
        line = await reader.readline()
        if not line.endswith(b"\n"):
            return False
        self.report = WorkerReport(**json.loads(line))
        return True

    async def wait(self) -> int:
        """Returns the exit code."""
        assert self._reader is not None
        assert self._writer is not None
        with contextlib.suppress(ConnectionError):
            while await self._receive(self._reader):
                pass
        self._writer.close()
        # The channel closes shortly before the exit, which is polled.
        while (code := self._process.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def discard(self) -> None:
        """One that was told nothing."""
        self._channel.close()
        self._process.terminate()
        self._process.wait()


class WorkerStarter:
    """The first at once, so that its imports begin early."""

    def __init__(self, metrics_folder: str) -> None:
        self.metrics_folder = metrics_folder
        self._loading: WorkerProcess | None = WorkerProcess(metrics_folder)

    def take(self) -> WorkerProcess:
        worker, self._loading = self._loading, None
        return worker or WorkerProcess(self.metrics_folder)

    def delete_metrics(self, pid: int) -> None:
        """Of one that never served: one that keeps failing would fill the disk."""
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
        # Before the first process, because children inherit it.
        raise_limit()
        starter = WorkerStarter(metrics_folder)
        try:
            yield starter
        finally:
            starter.close()


@contextmanager
def _locked_folder(folder: str) -> Iterator[None]:
    """systemd-tmpfiles would delete it after days without changes, and no worker could start."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def received_listener(channel: socket.socket) -> socket.socket | None:
    """Waits for it, in the worker. None if the supervisor has ended."""
    data, descriptors, _, _ = socket.recv_fds(channel, len(_LISTENER), 1)
    if data != _LISTENER:
        return None
    listener = socket.socket(fileno=descriptors[0])
    listener.setblocking(False)
    return listener
