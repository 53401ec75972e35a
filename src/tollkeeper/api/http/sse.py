"""Server-sent events as our clients read them: one record in one piece, comments to keep alive.

No `id:`, no `retry:`, no record without data: common clients break on each of them.
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
# How long the last record of a stream that is cut may wait for a slow reader.
_CUT_S = 0.5


class KeepAlive:
    """Writes a comment into streams that are silent for long. One task for all of them."""

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
    """The response body of one stream. The status goes out with the first record."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.started = False
        self._held = False
        # Whether anything was written since this was last reset: silence is what keep-alive fills.
        self.wrote = False
        self._ending = False
        # Sends that have not returned. One that was interrupted stays counted: what came of it is
        # not known, so nothing can be sent after it.
        self._sending = 0
        self._keeping: asyncio.Task[None] | None = None

    def hold(self) -> None:
        """There will be records, but none may go out yet. Where that takes long, the stream starts
        with comments, and whatever fails from then on is a record."""
        self._held = True
        self.wrote = True  # the silence is counted from here

    async def write(self, records: bytes) -> None:
        if self._keeping is not None:
            await self._keeping
        if self._ending:
            return  # The stream was cut: the call goes on in a task of its own, its answer does not.
        self._sending += 1
        if not self.started:
            await self._start()
        self.wrote = True
        await self._send({"type": "http.response.body", "body": records, "more_body": True})
        self._sending -= 1

    async def end(self, records: bytes = b"") -> None:
        # It may have to wait for a slow reader, and nothing may come after it.
        self._ending = True
        if self._keeping is not None:
            await self._keeping
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": records, "more_body": False})

    async def cut(self, records: bytes) -> None:
        """Ends the stream with these records where its reader has taken what came before them. A
        reader that is slow is not waited for: its connection is closed without them."""
        if self._ending or self._sending:
            self._ending = True
            return
        with suppress(TimeoutError), timeout(_CUT_S):
            await self.end(records)

    def keep_alive(self) -> None:
        """Called by a timer. A send that is still under way is activity enough."""
        waiting = (self.started or self._held) and not self._ending
        if waiting and not self.wrote and self._keeping is None:
            # Decided here and now: from this moment on a failure is a record.
            starts, self.started = not self.started, True
            self._keeping = asyncio.create_task(self._keep_alive(starts))
        self.wrote = False

    async def _keep_alive(self, starts: bool) -> None:
        if starts:
            await self._start()
        await self._send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
        self._keeping = None

    async def _start(self) -> None:
        self.started = True
        headers: Headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (REQUEST_ID, self._request_id.encode()),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
