"""Provides a fast transport without TLS for the HTTP clients of tests.

With its own transport, httpx2 takes more CPU time for a request than the gateway does. SDKs still use
httpx2's transport, so it is tested too. This transport keeps connections alive like httpx2's, reads no
further ahead than a test asks for, and raises the same errors.
"""

import asyncio
import select
import time
from collections.abc import AsyncIterable, AsyncIterator
from types import TracebackType
from typing import Any, Self

import httptools
import httpx2

_READ_BYTES = 65_536
_BODILESS = (204, 304)
# The same limits as in httpx2.
_IDLE_MAX = 20
_IDLE_S = 5.0


def http_client(base_url: str = "", *, timeout: float = 60, **options: Any) -> httpx2.AsyncClient:
    """Creates a client with its own connections."""
    limits = options.pop("limits", httpx2.Limits(max_connections=100))
    transport = PlainTransport(limits.max_connections)
    return httpx2.AsyncClient(base_url=base_url, timeout=timeout, transport=transport, **options)


class _Connection:
    """Contains one connection, and the answer that arrives on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = httptools.HttpResponseParser(self)
        self._readable = select.poll()
        self._readable.register(writer.get_extra_info("socket").fileno(), select.POLLIN)
        self.idle_since = 0.0
        self.reusable = False
        self.begin("GET")

    def begin(self, method: str) -> None:
        """Discards the previous answer."""
        self._is_head = method == "HEAD"
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.complete = False
        self.reusable = False

    @property
    def is_usable(self) -> bool:
        """Returns whether the server has neither closed the idle connection nor sent anything on it."""
        return not self._writer.is_closing() and not self._readable.poll(0)

    async def send(self, request: httpx2.Request, timeout_s: float | None) -> None:
        """Sends the request. Ignores a closed connection: the server may answer before it has read all."""
        target = request.url.raw_path.decode("ascii")
        lines = [f"{request.method} {target} HTTP/1.1\r\n".encode("ascii")]
        lines += [b"%s: %s\r\n" % header for header in request.headers.raw]
        head = b"".join([*lines, b"\r\n"])
        chunked = "transfer-encoding" in request.headers
        assert isinstance(request.stream, AsyncIterable)
        try:
            async with asyncio.timeout(timeout_s):
                async for piece in request.stream:
                    framed = b"%x\r\n%s\r\n" % (len(piece), piece) if chunked and piece else piece
                    self._writer.write(head + framed)
                    head = b""
                    await self._writer.drain()
                self._writer.write(head + (b"0\r\n\r\n" if chunked else b""))
                await self._writer.drain()
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise httpx2.WriteTimeout("", request=request) from error

    async def read(self, request: httpx2.Request, timeout_s: float | None) -> None:
        """Reads and parses the next data."""
        try:
            async with asyncio.timeout(timeout_s):
                data = await self._reader.read(_READ_BYTES)
        except TimeoutError as error:
            raise httpx2.ReadTimeout("", request=request) from error
        except OSError as error:
            raise httpx2.ReadError(str(error), request=request) from error
        if not data:
            self._end(request)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise httpx2.RemoteProtocolError(str(error), request=request) from error

    def _end(self, request: httpx2.Request) -> None:
        """Completes an answer whose body ends with the connection; raises if the answer is cut off."""
        names = {name.lower() for name, _ in self.headers}
        if not self.status or names & {b"content-length", b"transfer-encoding"}:
            message = "the server closed the connection before the end of its answer"
            raise httpx2.RemoteProtocolError(message, request=request)
        self.complete = True

    def close(self) -> None:
        self.reusable = False
        self._writer.close()

    # The parser calls the following methods.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []
            return
        self.status = status
        if self._is_head or status in _BODILESS:
            self.complete = True
            self.reusable = self._parser.should_keep_alive() and status in _BODILESS

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.pieces.append(body)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()


class _Body(httpx2.AsyncByteStream):
    """Yields the body of an answer as it arrives, and gives its connection back when it is closed."""

    def __init__(
        self, transport: "PlainTransport", connection: _Connection, request: httpx2.Request
    ) -> None:
        self._transport = transport
        self._connection: _Connection | None = connection
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        connection = self._connection
        assert connection is not None
        while True:
            pieces, connection.pieces = connection.pieces, []
            for piece in pieces:
                yield piece
            if connection.complete:
                return
            await connection.read(self._request, _timeouts(self._request)["read"])

    async def aclose(self) -> None:
        if self._connection is not None:
            self._transport.give_back(self._connection, self._request)
            self._connection = None


class PlainTransport(httpx2.AsyncBaseTransport):
    """Manages connections to servers that speak HTTP/1.1 without TLS."""

    def __init__(self, connections_max: int | None = None) -> None:
        self._room = None if connections_max is None else asyncio.Semaphore(connections_max)
        self._idle: dict[tuple[str, int], list[_Connection]] = {}
        self._open: set[_Connection] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert request.url.scheme == "http"
        timeouts = _timeouts(request)
        if self._room is not None:
            await self._room.acquire()
        connection = None
        try:
            connection = await self._connect(request, timeouts["connect"])
            connection.begin(request.method)
            await connection.send(request, timeouts["write"])
            while not connection.status:
                await connection.read(request, timeouts["read"])
        except BaseException:
            self.give_back(connection, request)
            raise
        return httpx2.Response(
            connection.status, headers=connection.headers, stream=_Body(self, connection, request)
        )

    async def _connect(self, request: httpx2.Request, timeout_s: float | None) -> _Connection:
        host, port = _origin(request)
        idle = self._idle.get((host, port), [])
        while idle:
            connection = idle.pop()
            if connection.is_usable and time.monotonic() - connection.idle_since < _IDLE_S:
                return connection
            self._discard(connection)
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port, limit=_READ_BYTES // 2)
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("", request=request) from error
        except OSError as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        connection = _Connection(reader, writer)
        self._open.add(connection)
        return connection

    def give_back(self, connection: _Connection | None, request: httpx2.Request) -> None:
        """Keeps a connection whose answer was read to its end, and closes any other."""
        if self._room is not None:
            self._room.release()
        if connection is None:
            return
        idle = self._idle.setdefault(_origin(request), [])
        if connection.reusable and not connection.pieces and len(idle) < _IDLE_MAX:
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            self._discard(connection)

    def _discard(self, connection: _Connection) -> None:
        self._open.discard(connection)
        connection.close()

    async def aclose(self) -> None:
        for connection in tuple(self._open):
            self._discard(connection)
        self._idle.clear()
        # The loop closes the sockets in its next turn.
        await asyncio.sleep(0)


def _origin(request: httpx2.Request) -> tuple[str, int]:
    return request.url.host, request.url.port or 80


def _timeouts(request: httpx2.Request) -> dict[str, float | None]:
    found = request.extensions.get("timeout", {})
    return {name: found.get(name) for name in ("connect", "read", "write")}
