"""One HTTP/1.1 server on one socket: starts, refreshes its Date header, drains, stops."""

import asyncio
import socket
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from tollkeeper.hosting.http_protocol import hardened_protocol
from tollkeeper.hosting.listeners import BACKLOG

_DATE_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class HttpLimits:
    header_timeout_s: float
    header_bytes_max: int
    keep_alive_s: float
    write_timeout_s: float


class HttpServer:
    """Serves an ASGI application on the running event loop and on a socket that is already bound."""

    def __init__(self, app: Any, limits: HttpLimits) -> None:
        self._state = ServerState()
        protocol = hardened_protocol(
            limits.header_timeout_s, limits.header_bytes_max, limits.write_timeout_s
        )
        self._config = Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            timeout_keep_alive=cast("int", limits.keep_alive_s),
        )
        self._config.load()
        self._protocol = protocol
        self._server: asyncio.Server | None = None
        self._date_task: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._date_task = loop.create_task(self._refresh_date())
        self._server = await loop.create_server(
            lambda: self._protocol(self._config, self._state, {}, loop),
            sock=listener,
            backlog=BACKLOG,
        )

    def stop_accepting(self) -> None:
        """Accepts no new connection, and no further request on an open connection."""
        assert self._server is not None
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def drain(self, grace_s: float) -> None:
        """Waits up to `grace_s` for open requests to end, then cancels the rest."""
        assert self._date_task is not None
        self.stop_accepting()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace_s)
        for task in list(self._state.tasks):
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
        for connection in list(self._state.connections):
            if connection.transport is not None:
                connection.transport.close()
        self._date_task.cancel()
        await asyncio.gather(self._date_task, return_exceptions=True)

    async def _refresh_date(self) -> None:
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            await asyncio.sleep(_DATE_INTERVAL_S)
