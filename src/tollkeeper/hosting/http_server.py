"""Runs one HTTP/1.1 server on one socket: starts, drains, stops."""

import asyncio
import socket

from tollkeeper.api.http.exchange import Application
from tollkeeper.hosting.arrivals import PER_TURN, Arrivals
from tollkeeper.hosting.http_protocol import HttpConnection, HttpLimits, ServerState
from tollkeeper.hosting.listeners import BACKLOG, drop_new_connections, stop_listening
from tollkeeper.runtime.fair_turns import FairTurns

# When the server stops, it waits at least this long for connections that are being opened and for
# their requests, and at most the second time if a request is incomplete.
_LAST_ARRIVALS_S = 0.3
_LAST_ARRIVALS_S_MAX = 3.0
_POLL_S = 0.05


class HttpServer:
    """Serves an application on the running event loop and a bound socket. Requests wait for
    `arrivals` before they are parsed."""

    def __init__(
        self,
        app: Application,
        limits: HttpLimits,
        arrivals: Arrivals | None = None,
    ) -> None:
        arrivals = Arrivals(FairTurns(PER_TURN)) if arrivals is None else arrivals
        self._state = ServerState(app, limits, arrivals)
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None

    async def start(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._listener = listener
        self._server = await loop.create_server(
            lambda: HttpConnection(self._state, loop), sock=listener, backlog=BACKLOG
        )

    async def leave(self, delay_s: float) -> None:
        """Continues to serve for `delay_s`, and closes each connection with its next answer, so
        that clients open new ones. Returns when no further connection can be opened and the
        requests of the last ones have arrived: no sent request is lost."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        self._state.leaving = True
        await asyncio.sleep(delay_s)
        drop_new_connections(self._listener)
        began = loop.time()
        await asyncio.sleep(_LAST_ARRIVALS_S)
        while any(connection.is_receiving for connection in self._state.connections):
            if loop.time() - began > _LAST_ARRIVALS_S_MAX:
                break
            await asyncio.sleep(_POLL_S)

    def stop_accepting(self) -> None:
        """Accepts no new connection, and no further request on an open connection."""
        assert self._server is not None
        stop_listening(self._server)
        self._state.stopping = True
        for connection in list(self._state.connections):
            connection.stop_accepting()

    async def drain(self, grace_s: float) -> None:
        """Waits up to `grace_s` for open requests to end. Notifies the clients of the rest that the
        server stops. Cancels requests, unless they end by themselves."""
        self.stop_accepting()
        # The server is closed in the next iteration of the loop.
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
