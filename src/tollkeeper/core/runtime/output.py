"""Writes log lines and announcements in a thread, so that the event loop never waits for whoever reads them.
A pipe that nobody reads, a full disk or a paused terminal (Ctrl-S) would stop all calls, and even SIGTERM."""

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable

# Further lines are dropped and counted.
_WAITING_BYTES_MAX = 4 * 1024 * 1024
# Linux writes this much to a pipe in one piece, so lines of several processes don't mix.
_PIECE_BYTES = 4096
# For the last lines of a process.
_LAST_LINES_S = 1.0


class Output:
    """To one file descriptor. Any thread may call it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # With how many were dropped, once lines can be written again.
        self.on_dropped: Callable[[int], None] = lambda _: None
        # Since the process started.
        self.dropped = 0
        self._begin()
        # A fork has no threads, and mustn't write its parent's lines again.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._reported = self.dropped
        self._is_writing = False
        self._thread: threading.Thread | None = None

    def write(self, text: bytes) -> None:
        """Whole lines. Never waits for the reader."""
        with self._changed:
            if self._waiting_bytes + len(text) > _WAITING_BYTES_MAX:
                self.dropped += text.count(b"\n")
                return
            self._waiting.append(text)
            self._waiting_bytes += len(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="output", daemon=True)
                self._thread.start()
                atexit.register(self.flush, _LAST_LINES_S)
            self._changed.notify_all()

    def write_line(self, text: str) -> None:
        self.write(text.encode(errors="backslashreplace") + b"\n")

    def flush(self, within_s: float) -> None:
        """Until everything is written."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while (self._waiting or self._is_writing) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                self._is_writing = True
                piece = self._take()
            written = self._send(piece)
            with self._changed:
                self._is_writing = False
                self.dropped += 0 if written else piece.count(b"\n")
                unreported = self.dropped - self._reported
                if not written or self._waiting:
                    unreported = 0
                self._reported += unreported
                self._changed.notify_all()
            if unreported:
                self.on_dropped(unreported)

    def _take(self) -> bytes:
        """With those after it that fit into one piece."""
        texts = [self._waiting.popleft()]
        size = len(texts[0])
        while self._waiting and size + len(self._waiting[0]) <= _PIECE_BYTES:
            texts.append(self._waiting.popleft())
            size += len(texts[-1])
        self._waiting_bytes -= size
        return b"".join(texts)

    def _send(self, text: bytes) -> bool:
        """False if the reader has gone or the disk is full."""
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            return False
        return True


standard_output = Output(1)
log_output = Output(2)
