"""Runs the console's HTTP server. Only this file knows the server library."""

import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from tollkeeper.settings import Settings

_KEEP_ALIVE_S = 30
_GRACE_S = 3


# Receives the function to call when a signal stops the process.
TakeSignals = Callable[[Callable[[], None]], None]


async def serve(
    app: Any, settings: Settings, listener: socket.socket, take_signals: TakeSignals
) -> None:
    """Serves on the bound socket until SIGTERM or SIGINT."""
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

    # The server installs its own handlers while it serves, which do not see earlier signals.
    take_signals(stop)
    await server.serve(sockets=[listener])
