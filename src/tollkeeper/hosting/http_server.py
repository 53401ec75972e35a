"""One HTTP/1.1 server on one socket: starts, drains, stops."""

import asyncio
import socket

from tollkeeper.api.http.exchange import Application, RefusesAtOnce
from tollkeeper.fair_turns import FairTurns
from tollkeeper.hosting.arrivals import PER_TURN, Arrivals
from tollkeeper.hosting.http_protocol import HttpConnection, HttpLimits, ServerState
from tollkeeper.hosting.listeners import BACKLOG, stop_listening


class HttpServer:
    """Serves an application on the running event loop and on a socket that is already bound.
    `refuses_at_once` is asked before the application is called. Requests wait for `arrivals` before
    they are parsed."""

    def __init__(
        self,
        app: Application,
        limits: HttpLimits,
        refuses_at_once: RefusesAtOnce | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        arrivals = Arrivals(FairTurns(PER_TURN)) if arrivals is None else arrivals
        self._state = ServerState(app, limits, arrivals, refuses_at_once)
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpConnection(self._state, loop), sock=listener, backlog=BACKLOG
        )

    def stop_accepting(self) -> None:
        """Accepts no new connection, and no further request on an open connection."""
        assert self._server is not None
        stop_listening(self._server)
        self._state.stopping = True
        for connection in list(self._state.connections):
            connection.stop_accepting()

    async def drain(self, grace_s: float) -> None:
        """Waits up to `grace_s` for open requests to end. The callers of the rest are told that the
        server stops. A request that takes care of its own end is left to it, others are cancelled.
        """
        self.stop_accepting()
        # The server is closed in the next turn of the loop.
        await asyncio.sleep(0)
        exchanges = self._state.exchanges
        open_tasks = [exchange.task for exchange in exchanges if exchange.task is not None]
        if open_tasks:
            await asyncio.wait(open_tasks, timeout=grace_s)
        cancelled = []
        for exchange in list(exchanges):
            exchange.stop()
            if exchange.task is not None and not exchange.ends_by_itself:
                exchange.task.cancel()
                cancelled.append(exchange.task)
        await asyncio.gather(*cancelled, return_exceptions=True)
        for connection in list(self._state.connections):
            connection.close()
