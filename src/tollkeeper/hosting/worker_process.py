"""A worker as its supervisor holds it: a process, and one channel to it.

Loading the program is most of what a start takes. So a worker begins to load the moment it is made,
while its supervisor still reads settings, and serves when it is told to. This file loads nothing
that takes time, for the same reason.

Down the channel go the listening socket and then instructions, each a line of JSON; up comes one
byte when connections are answered. Its end means, on either side, that the other is gone.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_POLL_S = 0.02
_LISTENER = b"L"
READY = b"R"


class WorkerProcess:
    def __init__(self, metrics: str) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tollkeeper.hosting.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": metrics},
                # Ctrl-C reaches the whole group of the terminal; only the supervisor acts on it.
                start_new_session=True,
            )
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    async def start(self, listener: socket.socket, instruction: dict[str, Any]) -> None:
        """Raises OSError where the process has ended already; nothing of it is left then."""
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
        """False where it ended without a word; where it is late, it is ended."""
        assert self._reader is not None
        try:
            return await asyncio.wait_for(self._reader.read(len(READY)), within_s) == READY
        except TimeoutError:
            self.kill()
        except ConnectionError:
            pass
        return False

    async def wait(self) -> int:
        """Until it has ended; its exit code."""
        assert self._reader is not None
        assert self._writer is not None
        with contextlib.suppress(ConnectionError):
            await self._reader.read()
        self._writer.close()
        # What it had open is closed before it is gone.
        while (code := self._process.poll()) is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def discard(self) -> None:
        """For one that was never started: it sees its channel end, and ends."""
        self._channel.close()
        self._process.terminate()
        self._process.wait()


class WorkerStarter:
    """Where workers come from. The first one loads already."""

    def __init__(self, metrics: str) -> None:
        # Where the workers write what they count.
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
        opened = WorkerStarter(metrics)
        try:
            yield opened
        finally:
            opened.close()


def received_listener(channel: socket.socket) -> socket.socket | None:
    """The worker's side: waits until it is told to start. None where nobody is there any more."""
    said, descriptors, _, _ = socket.recv_fds(channel, len(_LISTENER), 1)
    if said != _LISTENER:
        return None
    listener = socket.socket(fileno=descriptors[0])
    listener.setblocking(False)
    return listener
