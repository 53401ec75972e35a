"""Listening sockets. They are bound before anything else starts, so that a port that is already in
use is reported at once."""

import asyncio
import ctypes
import errno
import socket
import struct
import sys

from tollkeeper.domain.errors import StateConflict

# How many connections the kernel queues until they are accepted.
BACKLOG = 2048
# Linux: a filter of the packets that a socket receives, from the TCP header on.
_SO_ATTACH_FILTER = 26
# Each line is an operation, where to jump if a comparison is true or false, and a number. A packet
# with SYN and without ACK is dropped.
_NO_SYN = (
    (0x30, 0, 0, 13),  # load the byte with the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # is it SYN alone?
    (0x06, 0, 0, 0),  # keep nothing of the packet
    (0x06, 0, 0, 0xFFFF_FFFF),  # keep all of it
)


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


def drop_new_connections(listener: socket.socket) -> None:
    """Makes the kernel drop the first packet of each new connection. Connections that are being made
    come about and can be accepted. A caller sends the first packet again after a second, and is
    refused if the listener is closed by then. Without this, closing the listener would reset
    connections that the kernel has made and nobody has accepted, with the requests in them."""
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _NO_SYN))
    described = struct.pack("HL", len(_NO_SYN), ctypes.addressof(program))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


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
