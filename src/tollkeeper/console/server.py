"""Runs the console's HTTP server. No other file of the console uses the server library."""

import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from tollkeeper.settings import Settings

# An idle connection is closed after this time.
_KEEP_ALIVE_S = 30
# The time that open requests have to end after a stop signal.
_GRACE_S = 3


# Registers a function that is called when a signal asks the process to stop.
TakeSignals = Callable[[Callable[[], None]], None]


async def serve(
    app: Any, settings: Settings, listener: socket.socket, take_signals: TakeSignals
) -> None:
    """Serves the application on the listening socket until SIGTERM or SIGINT."""
    console = settings.console
    certificate, key = console.tls_files or (None, None)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=bool(console.trusted_proxies),
        forwarded_allow_ips=list(console.trusted_proxies),
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    server = uvicorn.Server(config)

    def stop() -> None:
        server.should_exit = True

    # uvicorn installs its own signal handlers only when it begins to serve, so it would miss an
    # earlier signal.
    take_signals(stop)
    await server.serve(sockets=[listener])
