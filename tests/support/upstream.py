"""Provides a scripted model server on a raw socket, which can play all faults of a real server.

    async with Upstream(reset_before_headers()) as upstream:
        ...  # call upstream.url

A script has one verb for each request, in the order of arrival; the last verb repeats. A verb is an
async function of the `Peer`, the server's side of one request. The verbs below play the known faults
(their codes are in brackets), and a test may define its own. The upstream records every request and
counts its connections. It listens on a free port of the loopback interface, and closes everything.
"""

import asyncio
import gzip
import itertools
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.support.stream_server import StreamServer, reset
from tests.support.upstream_wire import (
    DONE,
    USAGE,
    Received,
    chat_records,
    chunk,
    completion,
    sse,
    usage_chunk,
)

# These texts belong to this module: tests that script an upstream import them from here.
__all__ = ["DONE", "USAGE", "Received", "chat_records", "chunk", "completion", "sse", "usage_chunk"]

JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream; charset=utf-8"


class Peer:
    """Contains the server's side of one request."""

    def __init__(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.request = request
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Raises ConnectionError if the client has disconnected."""
        self._writer.write(data)
        await self._writer.drain()

    async def send_head(
        self,
        status: int = 200,
        content_type: str | None = SSE_TYPE,
        headers: Iterable[tuple[str, str]] = (),
        length: int | None = None,
    ) -> None:
        """Sends a response head. The body is chunked unless its length is given."""
        lines = [f"HTTP/1.1 {status} Scripted"]
        if content_type is not None:
            lines.append(f"content-type: {content_type}")
        lines += [f"{name}: {value}" for name, value in headers]
        lines.append(
            "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        )
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def send_chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_chunks(self) -> None:
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Closes the connection with a TCP reset."""
        reset(self._writer)

    def close(self) -> None:
        self._writer.close()

    async def until_left(self) -> None:
        """Returns when the client has closed the connection."""
        while await self._reader.read(65536):
            pass

    @property
    def left(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()


Verb = Callable[[Peer], Awaitable[None]]


class Upstream(StreamServer):
    """Plays the script. `url` is the base URL for the settings of a backend."""

    def __init__(
        self,
        *script: Verb,
        tls: ssl.SSLContext | None = None,
        hosts: tuple[str, ...] = ("127.0.0.1",),
        port: int = 0,
    ) -> None:
        assert script
        super().__init__(self._answer, hosts=hosts, port=port, tls=tls)
        self._scheme = "http" if tls is None else "https"
        self._script = script
        self.requests: list[Received] = []
        # Answers requests for the list of models, which are neither part of the script nor in
        # `requests`.
        self.list_models = model_list("upstream-chat", "chat-small")
        self.list_requests: list[Received] = []
        # The number of requests whose verb has not ended.
        self.under_way = 0

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/v1"

    @property
    def two_urls(self) -> tuple[str, str]:
        """Returns two URLs of this server, for a backend with two replicas, of which one can be ejected."""
        return self.url, self.url.replace("127.0.0.1", "localhost")

    def play(self, *script: Verb) -> None:
        """Replaces the script, from the next request on."""
        self._script = (*([_unused] * len(self.requests)), *script)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            request = await _read_request(reader)
            if request.head.startswith(b"GET ") and request.path.partition("?")[0].endswith(
                "/models"
            ):
                self.list_requests.append(request)
                await self.list_models(Peer(request, reader, writer))
                continue
            verb = self._script[min(len(self.requests), len(self._script) - 1)]
            self.requests.append(request)
            self.under_way += 1
            try:
                await verb(Peer(request, reader, writer))
            finally:
                self.under_way -= 1


async def _read_request(reader: asyncio.StreamReader) -> Received:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(Received(head, b"").headers.get("content-length", "0"))
    return Received(head, await reader.readexactly(length))


async def _unused(_: Peer) -> None:
    raise AssertionError("this place of the script is over")


def unused_url() -> str:
    """[refuse] Returns a URL at which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/v1"


@contextmanager
def unanswered_url() -> Iterator[str]:
    """Yields a URL to which connecting never succeeds, because the queue of its listener is full."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


# Verbs for correct answers.


def answer(
    body: Any = None,
    *,
    status: int = 200,
    content_type: str | None = JSON_TYPE,
    headers: Iterable[tuple[str, str]] = (),
) -> Verb:
    """Sends a whole response; without a body, a chat answer. Bytes are sent unchanged."""
    content = body if isinstance(body, bytes) else json.dumps(body or completion()).encode()

    async def verb(peer: Peer) -> None:
        await peer.send_head(status, content_type, headers, length=len(content))
        await peer.send(content)

    return verb


def stream(
    records: Iterable[bytes] | None = None, *, pause_s: float = 0, content_type: str = SSE_TYPE
) -> Verb:
    """Sends a stream, with one network chunk for each record; without records, a chat answer."""
    sent = list(chat_records() if records is None else records)

    async def verb(peer: Peer) -> None:
        await peer.send_head(content_type=content_type)
        for record in sent:
            await peer.send_chunk(record)
            await asyncio.sleep(pause_s)
        await peer.end_chunks()

    return verb


def model_list(*names: str) -> Verb:
    return answer({"object": "list", "data": [{"id": name} for name in names]})


def chat() -> Verb:
    """Answers as a correct server: in JSON or as a stream, as requested. JSON has `n` choices."""

    async def verb(peer: Peer) -> None:
        request = peer.request.json
        if request.get("stream"):
            await stream()(peer)
        else:
            await answer(completion(choices=request.get("n", 1)))(peer)

    return verb


# Verbs for faults.


def hang() -> Verb:
    """[hang] Reads the request and never answers."""
    return Peer.until_left


def reset_before_headers() -> Verb:
    """[rst0] Resets the connection before it sends headers."""

    async def verb(peer: Peer) -> None:
        peer.reset()

    return verb


def close_before_headers() -> Verb:
    async def verb(peer: Peer) -> None:
        peer.close()

    return verb


def reset_after(
    pieces: int | None = None, *, content_type: str = SSE_TYPE, pause_s: float = 0.02
) -> Verb:
    """[rst1, rstk] Resets the connection after the 200 and, if given, this many pieces of text."""

    async def verb(peer: Peer) -> None:
        await peer.send_head(content_type=content_type)
        for number in range(pieces or 0):
            await peer.send_chunk(sse(chunk(f"{number} ")))
        # A reset discards the data that the client has not read yet, so give it time to read.
        await asyncio.sleep(pause_s)
        peer.reset()

    return verb


def end_after(pieces: int, *, finished: bool = False) -> Verb:
    """[eofk] Ends the body correctly after some pieces, without `[DONE]`."""
    records = [sse(chunk(f"{number} ")) for number in range(pieces)]
    return stream([*records, sse(chunk(finish="stop"))] if finished else records)


def drip(data: bytes, *, before: bytes = b"", pause_s: float, content_type: str = SSE_TYPE) -> Verb:
    """[drip] Sends `before` at once and `data` byte by byte, and waits until the client disconnects."""

    async def verb(peer: Peer) -> None:
        await peer.send_head(content_type=content_type)
        if before:
            await peer.send_chunk(before)
        for position in range(len(data)):
            await peer.send_chunk(data[position : position + 1])
            await asyncio.sleep(pause_s)
        await peer.until_left()

    return verb


def cut(data: bytes, *positions: int) -> Verb:
    """[sse-odd, sse-bad] Sends these bytes as a stream, in network chunks that end at the positions."""
    edges = [0, *positions, len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges) if start < end]

    async def verb(peer: Peer) -> None:
        await peer.send_head()
        for piece in pieces:
            await peer.send_chunk(piece)
            await asyncio.sleep(0)
        await peer.end_chunks()

    return verb


def fat_line(size: int, *, before: bytes = b"", content_type: str = SSE_TYPE) -> Verb:
    """[fat] Sends one line of this size without an end, and waits until the client disconnects."""

    async def verb(peer: Peer) -> None:
        await peer.send_head(content_type=content_type)
        await peer.send_chunk(before + b"data: ")
        for _ in range(size // 65536):
            await peer.send_chunk(b"x" * 65536)
        await peer.until_left()

    return verb


def endless(record: bytes | None = None) -> Verb:
    """[inf] Sends pieces until the client disconnects."""
    piece = sse(chunk("on and ")) if record is None else record

    async def verb(peer: Peer) -> None:
        await peer.send_head()
        while not peer.left:
            await peer.send_chunk(piece)
            await asyncio.sleep(0)

    return verb


def gzip_bomb(size: int, *, content_type: str = JSON_TYPE) -> Verb:
    """Sends a small body that is large when decompressed, although the client did not ask for it."""
    headers = [("content-encoding", "gzip")]

    async def verb(peer: Peer) -> None:
        packed = await asyncio.to_thread(gzip.compress, bytes(size))
        await answer(packed, content_type=content_type, headers=headers)(peer)

    return verb


def redirect(location: str, *, status: int = 302) -> Verb:
    return answer(b"", status=status, content_type=None, headers=[("location", location)])


def refuse(
    status: int, message: str | None = "no", *, headers: Iterable[tuple[str, str]] = ()
) -> Verb:
    """Sends an error status with an error object, as model servers do."""
    body = {"error": {"message": message, "type": "invalid_request_error", "code": status}}
    return answer(body, status=status, headers=headers)
