"""An HTTP/1.1 server on one socket, until all its requests have ended."""

import asyncio
import socket
from collections.abc import Callable

from tollkeeper.core.runtime.fair_queue import FairTurns
from tollkeeper.http.arrivals import PER_TURN, Arrivals
from tollkeeper.http.envelope import ErrorStyle
from tollkeeper.http.exchange import Application
from tollkeeper.http.http_protocol import HttpConnection, HttpLimits, ServerState
from tollkeeper.http.listeners import BACKLOG, drop_new_connections, stop_listening

# The least and the most that a stopping server waits for requests still arriving, checking every `_POLL_S`.
_LAST_ARRIVALS_S_MIN = 0.3
_LAST_ARRIVALS_S_MAX = 3.0
_POLL_S = 0.05


class HttpServer:
    """On a bound socket. `arrivals` decides when parsing begins, and `error_style` how an invalid request is
    answered."""

    def __init__(
        self,
        app: Application,
        limits: HttpLimits,
        arrivals: Arrivals | None = None,
        error_style: Callable[[bytes], ErrorStyle] = lambda _: ErrorStyle.USUAL,
    ) -> None:
        arrivals = Arrivals(FairTurns(PER_TURN)) if arrivals is None else arrivals
        self._state = ServerState(app, limits, arrivals, error_style)
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None

    async def start(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._listener = listener
        self._server = await loop.create_server(
            lambda: HttpConnection(self._state, loop), sock=listener, backlog=BACKLOG
        )

    async def prepare_stop(self, delay_s: float) -> None:
        """So that a stop loses no request: for `delay_s` each connection closes after its next answer, so
        clients open new ones, at other gateways if there are any. Then no connection is accepted, and the
        last ones' requests are awaited."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        self._state.leaving = True
        await asyncio.sleep(delay_s)
        drop_new_connections(self._listener)
        began = loop.time()
        await asyncio.sleep(_LAST_ARRIVALS_S_MIN)
        while any(connection.is_receiving for connection in self._state.connections):
            if loop.time() - began > _LAST_ARRIVALS_S_MAX:
                break
            await asyncio.sleep(_POLL_S)

    def stop_accepting(self) -> None:
        """No new connection either."""
        assert self._server is not None
        stop_listening(self._server)
        self._state.stopping = True
        for connection in list(self._state.connections):
            connection.stop_accepting()

    async def drain(self, grace_s: float) -> None:
        """Waits up to `grace_s` for open requests. Then tells the clients of the others, cancels those, and
        closes everything. What ends by itself after a disconnect (`HttpExchange.ends_by_itself`) isn't
        cancelled."""
        self.stop_accepting()
        # `stop_accepting` closes the server one iteration later.
        await asyncio.sleep(0)
        exchanges = self._state.exchanges
        if exchanges:
            await asyncio.wait(list(exchanges), timeout=grace_s)
        cancelled = []
        for task, exchange in list(exchanges.items()):
            exchange.stop()
            if not exchange.ends_by_itself:
                task.cancel()
                cancelled.append(task)
        await asyncio.gather(*cancelled, return_exceptions=True)
        for connection in list(self._state.connections):
            connection.close()
