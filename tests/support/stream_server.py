"""Runs a test server with one coroutine for each connection, and closes all connections at its end."""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Self

from tollkeeper.http.listeners import stop_listening

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_ENDS_WITHIN_S = 10


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes the connection with a TCP reset."""
    client = writer.get_extra_info("socket")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class StreamServer:
    """Listens on the loopback interface, at a free port unless a port is given. A connection is closed
    when its coroutine ends, and the coroutine ends when the client has disconnected."""

    def __init__(
        self,
        handle: Handle,
        *,
        hosts: tuple[str, ...] = ("127.0.0.1",),
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._handle = handle
        self._hosts = hosts
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.connections = 0
        self.port = port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, self._hosts, self.port, ssl=self._tls, limit=1 << 20
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        server, self._server = self._server, None
        assert server is not None
        stop_listening(server)
        for writer in self._open.values():
            writer.transport.abort()
        # Connections that were just accepted run now and end at once. Then the server is closed.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        async with asyncio.timeout(_ENDS_WITHIN_S):
            while self._open:
                await asyncio.wait(tuple(self._open))
            await server.wait_closed()

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def reset_all(self, last: bytes) -> None:
        """Resets all connections. Their clients get `last` together with the reset: the event loop sends the
        reset in its next iteration."""
        for writer in self._open.values():
            descriptor = writer.get_extra_info("socket").fileno()
            asyncio.get_running_loop().call_soon(os.write, descriptor, last)
            reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if self._server is None:
                return  # The server ended between the accept and the start of this task.
            self.connections += 1
            self._open[task] = writer
            await self._handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client has disconnected.
        finally:
            writer.close()
            self._open.pop(task, None)
