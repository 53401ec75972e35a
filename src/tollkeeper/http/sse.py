"""Writes server-sent events (records), with comments that keep silent connections alive.

Records have no `id:` or `retry:` and always `data:`, because common clients fail otherwise.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tollkeeper.http.envelope import ErrorStyle, request_id_headers

KEEP_ALIVE = b": keep-alive\n\n"
# Clients of the Messages protocol expect this instead of a comment.
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
DONE = b"data: [DONE]\n\n"

# After this long, a silent stream gets a comment.
_SILENCE_S = 10.0
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_HEADERS = b"".join(
    f"{name}: {value}\r\n".encode()
    for name, value in {
        "content-type": "text/event-stream; charset=utf-8",
        **STREAM_HEADERS,
    }.items()
)


class StreamWriter(Protocol):
    # Set whenever a piece is written. Callers reset it to see later whether there was another.
    wrote: bool

    @property
    def paused(self) -> bool:
        """The client reads too slowly: await `resumed` before you write more."""
        ...

    async def resumed(self) -> None:
        """Also returns if the client has disconnected."""
        ...

    def start(self, status: int, headers: bytes) -> None: ...

    def write(self, piece: bytes) -> None: ...

    def piece_writer(self, before: bytes, after: bytes) -> Callable[[bytes], bool] | None:
        """Returns a function that writes `before`, its argument and `after` as one piece. If the
        client reads too slowly or the answer has ended, it writes nothing and returns False. None
        before the answer's first piece, and always for HTTP/1.0."""
        ...

    def end(self, piece: bytes) -> None: ...


class KeepAlive:
    """One task serves all streams."""

    def __init__(self) -> None:
        self._silence_s = _SILENCE_S
        self._streams: set[EventStream] = set()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self, stream: "EventStream") -> Iterator["EventStream"]:
        self._streams.add(stream)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield stream
        finally:
            self._streams.discard(stream)

    async def _run(self) -> None:
        while self._streams:
            await asyncio.sleep(self._silence_s)
            for stream in list(self._streams):
                stream.keep_alive()
        self._task = None


class EventStream:
    """The status and headers are sent with the first record."""

    def __init__(
        self, writer: StreamWriter, request_id: str, style: ErrorStyle = ErrorStyle.USUAL
    ) -> None:
        self._writer = writer
        self._id_headers = request_id_headers(request_id, style)
        self._keep_alive = KEEP_ALIVE if style is ErrorStyle.USUAL else PING
        self.started = False
        self._held_back = False
        self._ending = False

    def mark_held_back(self) -> None:
        """Records exist but mustn't be sent yet. After a while, `keep_alive` starts the stream with
        a comment. The status 200 is sent then, so a later failure becomes a record."""
        self._held_back = True
        self._writer.wrote = True  # so that the next tick of the timer sends no comment yet

    async def write(self, records: bytes) -> None:
        if self._writer.paused and not self._ending:
            await self._writer.resumed()
        if self._ending:
            return  # the stream was cut; the call runs to its end, but the client gets nothing more
        if not self.started:
            self._start()
        self._writer.write(records)

    def piece_writer(self, before: bytes, after: bytes) -> Callable[[bytes], bool] | None:
        """As in `StreamWriter`. After `cut`, it writes nothing."""
        return self._writer.piece_writer(before, after)

    async def end(self, records: bytes = b"") -> None:
        # Before the wait for a slow client, so that `keep_alive` sends no comment meanwhile.
        self._ending = True
        if self._writer.paused:
            await self._writer.resumed()
        if not self.started:
            self._start()
        self._writer.end(records)

    def cut(self, records: bytes) -> None:
        """Without waiting, because the server is stopping. A slow client doesn't get `records`."""
        if not self._ending and not self._writer.paused:
            self._writer.end(records)
        self._ending = True

    def keep_alive(self) -> None:
        """A slow client gets no comment, because earlier records are still on their way."""
        writer = self._writer
        waiting = (self.started or self._held_back) and not self._ending
        if waiting and not writer.wrote and not writer.paused:
            if not self.started:
                self._start()
            writer.write(self._keep_alive)
        writer.wrote = False

    def _start(self) -> None:
        self.started = True
        self._writer.start(200, _HEADERS + self._id_headers)
