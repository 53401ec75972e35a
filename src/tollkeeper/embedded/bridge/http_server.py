"""The HTTP server of the bridge. Its only clients are the gateway's own workers, on loopback.

A client that closes its connection ends its call: the task that serves it is cancelled, which closes
the connection to the provider.
"""

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

_HEAD_BYTES_MAX = 64 << 10
_HEAD_TIMEOUT_S = 60.0
_BODY_BYTES_MAX = 1 << 30
_EVENT_STREAM = "text/event-stream"
_JSON = "application/json"
_CHUNK_END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, or the records of a stream."""

    status: int = 200
    document: Any = None
    records: AsyncIterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Answer]]


class BridgeServer:
    def __init__(self, handle: Handler, api_key: str) -> None:
        self._handle = handle
        self._authorization = f"Bearer {api_key}".encode()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        # The gateway has bound the port too, with a socket that does not listen.
        return await asyncio.start_server(
            self._serve, host, port, reuse_port=True, limit=_HEAD_BYTES_MAX
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await self._read_request(reader, writer)) is not None:
                if not await self._answer_while_client_stays(request, reader, writer):
                    break
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            pass  # The client has left, or is not one of ours.
        finally:
            writer.transport.abort()

    async def _read_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Request | None:
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:  # an idle connection
            return None
        first, *lines = head[:-4].split(b"\r\n")
        method, path, _ = first.split(b" ", 2)
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._authorization):
            await _write_whole(writer, Answer(401, {"error": {"message": "no"}}))
            return None
        length = int(headers.get(b"content-length", b"0"))
        if not 0 <= length <= _BODY_BYTES_MAX:
            return None
        async with asyncio.timeout(_HEAD_TIMEOUT_S):
            body = await reader.readexactly(length)
        return Request(method.decode("ascii"), path.decode("ascii"), body)

    async def _answer_while_client_stays(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection can serve another request."""
        answering = asyncio.create_task(self._answer(request, writer))
        # The client sends nothing more before it has its answer: whatever comes is its end.
        leaving = asyncio.create_task(reader.read(1))
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        stays = not leaving.done()
        for task in (leaving, answering):
            if not (task is answering and stays):
                task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
        try:
            return await answering and stays
        except asyncio.CancelledError:
            return False

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        answer = await self._handle(request)
        if answer.records is None:
            await _write_whole(writer, answer)
            return True
        return await _write_stream(writer, answer.records)


async def _write_whole(writer: asyncio.StreamWriter, answer: Answer) -> None:
    body = json.dumps(answer.document).encode()
    extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
    head = f"{_status_line(answer.status)}content-type: {_JSON}\r\n{extra}"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode("ascii") + body)
    await writer.drain()


async def _write_stream(writer: asyncio.StreamWriter, records: AsyncIterator[bytes]) -> bool:
    """Whether the stream came to its end. If not, its last chunk is left out, so that the gateway sees
    that the answer is incomplete."""
    head = f"{_status_line(200)}content-type: {_EVENT_STREAM}\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode("ascii"))
    ended = False
    try:
        async for record in records:
            writer.write(b"%x\r\n%b\r\n" % (len(record), record))
            await writer.drain()
        writer.write(_CHUNK_END)
        await writer.drain()
        ended = True
    finally:
        close = getattr(records, "aclose", None)
        if close is not None:
            await close()
    return ended


def _status_line(status: int) -> str:
    phrases = {known.value: known.phrase for known in HTTPStatus}
    return f"HTTP/1.1 {status} {phrases.get(status, 'Status')}\r\n"
