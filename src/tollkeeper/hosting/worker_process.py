"""Represents a worker for its supervisor: a process, and one channel to it.

Imports take most of the start time. So a worker process begins to import when it is created, while
the supervisor still reads its settings, and serves when instructed. For the same reason this module
has only fast imports.

The supervisor sends the listening socket and then instructions, each a line of JSON. The worker
sends reports, each a line of JSON too; the first one means that it serves. When the channel ends,
the other side has ended.
"""

import asyncio
import contextlib
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
from typing import Any

from tollkeeper.hosting.descriptors import raise_limit

_POLL_S = 0.02
_LISTENER = b"L"
# The interval of a worker's reports.
REPORT_INTERVAL_S = 0.5
# A worker that could not write a hold for this time cannot serve calls.
_WRITTEN_WITHIN_S = 6.0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Tells whether the worker can write holds, according to `services.ledger.hold_writes`."""

    written_s_ago: float | None
    failure: str | None
    received_at: float = field(default_factory=time.monotonic)

    @property
    def problem(self) -> str | None:
        """Explains why a call would fail now; None if a hold could be written a few seconds ago."""
        if self.failure is not None:
            return self.failure
        # A stuck worker sends no reports, so the time since the last one counts too.
        silent_s = time.monotonic() - self.received_at
        if self.written_s_ago is None or self.written_s_ago + silent_s > _WRITTEN_WITHIN_S:
            return f"no hold could be written within {_WRITTEN_WITHIN_S:.0f} s"
        return None


class WorkerProcess:
    def __init__(self, metrics: str) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tollkeeper.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": metrics},
                # Ctrl-C reaches all processes of the terminal; only the supervisor acts on it.
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

    async def start(self, listener: socket.socket, instruction: dict[str, Any]) -> None:
        """Raises OSError if the process has ended already; it is then cleaned up."""
        try:
            socket.send_fds(self._channel, [_LISTENER], [listener.fileno()])
            self._reader, self._writer = await asyncio.open_connection(sock=self._channel)
        except OSError:
            self.discard()
            raise
        self.instruct(instruction)

    def instruct(self, instruction: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(instruction).encode() + b"\n")

    async def becomes_ready(self, within_s: float) -> bool:
        """Returns False if the process ended before it was ready. Kills a process that is late."""
        assert self._reader is not None
        try:
            return await asyncio.wait_for(self._receive(self._reader), within_s)
        except TimeoutError:
            self.kill()
        except ConnectionError:
            pass
        return False

    async def _receive(self, reader: asyncio.StreamReader) -> bool:
        """Reads the next report. Returns False if the channel has ended."""
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
        # The channel ends shortly before the process does, and no event reports the process's end.
        while (code := self._process.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def discard(self) -> None:
        """Ends a worker that was never started, and waits for its end."""
        self._channel.close()
        self._process.terminate()
        self._process.wait()


class WorkerStarter:
    """Creates worker processes. Creates the first one at once, so that it begins to import."""

    def __init__(self, metrics: str) -> None:
        # The folder in which the workers write their metrics.
        self.metrics = metrics
        self._loading: WorkerProcess | None = WorkerProcess(metrics)

    def take(self) -> WorkerProcess:
        worker, self._loading = self._loading, None
        return worker or WorkerProcess(self.metrics)

    def close(self) -> None:
        if self._loading is not None:
            self._loading.discard()


@contextmanager
def worker_starter() -> Iterator[WorkerStarter]:
    with tempfile.TemporaryDirectory(prefix="tollkeeper-metrics-") as metrics:
        # Before the first process is created, because it inherits the limit.
        raise_limit()
        starter = WorkerStarter(metrics)
        try:
            yield starter
        finally:
            starter.close()


def received_listener(channel: socket.socket) -> socket.socket | None:
    """Waits in the worker for the listening socket. Returns None if the supervisor has ended."""
    data, descriptors, _, _ = socket.recv_fds(channel, len(_LISTENER), 1)
    if data != _LISTENER:
        return None
    listener = socket.socket(fileno=descriptors[0])
    listener.setblocking(False)
    return listener
