"""Sends HTTP requests byte by byte over a socket, for requests that no ordinary client sends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tests.support.gateway import Gateway, Tenant

# Much longer than any wait in these tests. If the server hangs, only the test fails.
_PATIENCE_S = 20
LIST_KEYS = b"GET /v1/organization/admin_api_keys HTTP/1.1\r\n"
CREATE_POLICY = b"POST /v1/organization/policies HTTP/1.1\r\n"
POLICY = b'{"name":"n","rule":"r?"}'


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def assert_error(self, status: int, code: str) -> None:
        """Checks that the answer is a complete error with the gateway's request id."""
        assert self.status == status, self.body
        error = self.json()["error"]
        assert set(error) == {"code", "message", "type", "param", "request_id", "doc_url"}
        assert error["code"] == code, error
        assert error["request_id"] == self.headers["x-request-id"]
        assert UUID(self.headers["x-request-id"]).version == 7
        assert self.headers["content-type"] == "application/json"


class RawConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *parts: bytes) -> None:
        self._writer.write(b"".join(parts))
        await self._writer.drain()

    async def answer(self, *, to_head: bool = False) -> Answer:
        """Returns the next response on the connection. `to_head` means that it has no body."""
        async with asyncio.timeout(_PATIENCE_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status_line, *lines = head.strip().split("\r\n")
            headers = {}
            for line in lines:
                name, _, value = line.partition(": ")
                assert name not in headers, f"{name} occurs twice"
                headers[name] = value
            length = 0 if to_head else int(headers.get("content-length", 0))
            body = await self._reader.readexactly(length)
        return Answer(int(status_line.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """Returns all bytes until the server closes the connection."""
        pieces = []
        async with asyncio.timeout(_PATIENCE_S):
            try:
                while piece := await self._reader.read(65536):
                    pieces.append(piece)
            except ConnectionError:
                pass  # The server closed the connection before it read all of our bytes.
        return b"".join(pieces)

    async def is_closed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self.rest() == b""
        except TimeoutError:
            return False

    def end_of_input(self) -> None:
        self._writer.write_eof()

    def abort(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def raw_connection(gateway: Gateway) -> AsyncIterator[RawConnection]:
    host, _, port = gateway.base_url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()


async def ask(gateway: Gateway, *parts: bytes) -> Answer:
    """Sends a request on a new connection, and returns the answer."""
    async with raw_connection(gateway) as connection:
        await connection.send(*parts)
        return await connection.answer()


def admin_headers(tenant: Tenant) -> bytes:
    return f"Host: x\r\nAuthorization: Bearer {tenant.admin_key}\r\n".encode()


def json_headers(tenant: Tenant, key: str = "a-key-of-mine") -> bytes:
    """Returns the headers of a request that creates something, without the content length."""
    extra = f"Content-Type: application/json\r\nIdempotency-Key: {key}\r\n"
    return admin_headers(tenant) + extra.encode()
