"""Listening sockets. They are bound before anything else starts, so that a port that is already in
use is reported at once."""

import asyncio
import errno
import socket

from tollkeeper.domain.errors import StateConflict

# How many connections the kernel queues until they are accepted.
BACKLOG = 2048


def bind(host: str, port: int, *, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only for sockets whose protocol is given explicitly.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        advice = ""
        if exc.errno == errno.EADDRINUSE:
            variable = f"TOLLKEEPER_{setting.upper()}__PORT"
            advice = f" Choose another port with {setting}.port or {variable}=N; 0 is any free one."
        raise StateConflict(
            f"{setting} = {host}:{port} cannot be bound: {exc.strerror}.{advice}"
        ) from exc
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def stop_listening(server: asyncio.Server) -> None:
    """Accepts no further connection, and closes the server when those that were accepted are made.

    The event loop makes a connection one turn after it has accepted it. If the server is closed in
    between, that fails without a word, and the caller has a connection that nobody serves or closes."""
    loop = server.get_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    loop.call_soon(server.close)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
