"""Provides a client on a raw socket, which may disconnect at any moment or read slowly."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.scripted_gateway import ScriptedGateway, chat_body

_PATIENCE_S = 20


class RawCaller:
    """Contains one connection, and parses only as much of HTTP as the tests need."""

    def __init__(
        self, scripted: ScriptedGateway, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._scripted = scripted
        self._reader = reader
        self._writer = writer

    async def ask(self, *, sent: float = 1.0, **fields: Any) -> None:
        """Sends a chat request, or only the share `sent` of its body."""
        content = json.dumps(chat_body(**fields)).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"
            f"Authorization: Bearer {self._scripted.tenant.project_key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        await self.send(head.encode() + content[: int(sent * len(content))])

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> bytes:
        """Reads a whole answer, and returns its body."""
        head = (await self.head()).lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        async with asyncio.timeout(_PATIENCE_S):
            return await self._reader.readexactly(length)

    async def head(self) -> str:
        """Waits until the answer begins, and returns the status line and headers."""
        async with asyncio.timeout(_PATIENCE_S):
            return (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")

    async def record(self) -> bytes:
        """Returns the next record of a stream, including the bytes of the chunked encoding around it."""
        async with asyncio.timeout(_PATIENCE_S):
            return await self._reader.readuntil(b"\n\n")

    async def is_cut_off(self) -> bool:
        """Reads to the end. Returns true if the server closes the connection before the end of the body."""
        last = b""
        async with asyncio.timeout(_PATIENCE_S):
            try:
                while piece := await self._reader.read(65536):
                    last = (last + piece)[-7:]
            except ConnectionError:
                return True
        return last[-5:] != b"0\r\n\r\n"

    def leave(self, *, abruptly: bool) -> None:
        """Closes the connection, or aborts it if `abruptly`."""
        if abruptly:
            self._writer.transport.abort()
        else:
            self._writer.close()

    def end_of_input(self) -> None:
        """Closes the sending side of the connection; the client can still read."""
        self._writer.write_eof()


@asynccontextmanager
async def raw_caller(
    scripted: ScriptedGateway, *, receive_buffer: int | None = None
) -> AsyncIterator[RawCaller]:
    host, _, port = scripted.gateway.base_url.removeprefix("http://").rpartition(":")
    connection = socket.socket()
    connection.setblocking(False)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
    limit = receive_buffer or 65536
    reader, writer = await asyncio.open_connection(sock=connection, limit=limit)
    try:
        yield RawCaller(scripted, reader, writer)
    finally:
        writer.transport.abort()
