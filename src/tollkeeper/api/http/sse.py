"""Writes server-sent events, with comments that keep silent connections alive.

Records have no `id:` or `retry:` and always have data, because common clients fail otherwise.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

from tollkeeper.api.http.envelope import REQUEST_ID, Headers
from tollkeeper.timeouts import timeout

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_SILENCE_S = 10.0
# The longest wait for a slow reader to take the last record of a stream that is cut.
_CUT_S = 0.5


class KeepAlive:
    """Writes a comment into streams that are silent for long. One task serves all streams."""

    def __init__(self) -> None:
        self._silence_s = _SILENCE_S
        self._streams: set[EventStream] = set()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self, stream: "EventStream") -> Iterator[None]:
        self._streams.add(stream)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._streams.discard(stream)

    async def _run(self) -> None:
        while self._streams:
            await asyncio.sleep(self._silence_s)
            for stream in list(self._streams):
                stream.keep_alive()
        self._task = None


class EventStream:
    """The response body of one stream. Status and headers are sent with the first record."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.started = False
        self._held = False
        # Whether anything was written since the last tick of the keep-alive timer.
        self._wrote = False
        self._ending = False
        # The number of sends that have not returned. A cancelled send stays counted, because it is
        # unknown how much of it was sent, so nothing can be sent after it.
        self._sending = 0
        self._comment_task: asyncio.Task[None] | None = None

    def hold(self) -> None:
        """Says that records exist but must not be sent yet. If that takes long, the stream starts
        with a comment, and a later failure is written as a record."""
        self._held = True
        self._wrote = True  # The silence is measured from here.

    async def write(self, records: bytes) -> None:
        if self._comment_task is not None:
            await self._comment_task
        if self._ending:
            return  # The stream was cut. The call still runs, but its answer is not sent.
        self._sending += 1
        if not self.started:
            await self._start()
        self._wrote = True
        await self._send({"type": "http.response.body", "body": records, "more_body": True})
        self._sending -= 1

    async def end(self, records: bytes = b"") -> None:
        # Set before the send, which may wait for a slow reader, so that no comment comes after it.
        self._ending = True
        if self._comment_task is not None:
            await self._comment_task
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": records, "more_body": False})

    async def cut(self, records: bytes) -> None:
        """Ends the stream with these records if the reader has taken everything before them. For a
        slow reader they are not sent, and the server closes the connection."""
        if self._ending or self._sending:
            self._ending = True
            return
        with suppress(TimeoutError), timeout(_CUT_S):
            await self.end(records)

    def keep_alive(self) -> None:
        """Called by a timer. Sends a comment if nothing was written since the last tick and no
        other comment is being sent."""
        waiting = (self.started or self._held) and not self._ending
        if waiting and not self._wrote and self._comment_task is None:
            # `started` is set now and not in the task, so that a failure that comes before the task
            # runs is already written as a record.
            starts, self.started = not self.started, True
            self._comment_task = asyncio.create_task(self._send_comment(starts))
        self._wrote = False

    async def _send_comment(self, starts: bool) -> None:
        if starts:
            await self._start()
        await self._send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
        self._comment_task = None

    async def _start(self) -> None:
        self.started = True
        headers: Headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (REQUEST_ID, self._request_id.encode()),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
