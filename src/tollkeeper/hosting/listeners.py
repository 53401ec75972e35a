"""Opens listening sockets. They are bound before anything else starts, so that a port in use is
reported at once."""

import asyncio
import ctypes
import errno
import socket
import struct
import sys

from tollkeeper.domain.errors import StateConflict

# The number of connections that the kernel queues until they are accepted.
BACKLOG = 2048
# Linux: a filter of the packets that a socket receives, from the TCP header on.
_SO_ATTACH_FILTER = 26
# Each line is an operation, the jumps for a true and a false comparison, and a number. Drops a
# packet with SYN and without ACK.
_NO_SYN = (
    (0x30, 0, 0, 13),  # load the byte with the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # is it SYN alone?
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFF_FFFF),  # accept the packet
)


def bind(host: str, port: int, *, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets with an explicit protocol.
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
    """Makes the kernel drop the first packet of each new connection. Connections that are already
    being opened succeed and can be accepted. A client repeats the first packet after a second, and
    is refused if the listener is closed by then. Without this, closing the listener would reset
    connections that the kernel has opened but the server has not accepted, with the requests in
    them."""
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _NO_SYN))
    described = struct.pack("HL", len(_NO_SYN), ctypes.addressof(program))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def stop_listening(server: asyncio.Server) -> None:
    """Accepts no further connection, and closes the server after accepted ones are set up.

    The event loop sets up a connection one iteration after it has accepted it. If the server is
    closed in between, that fails silently, and the client's connection is neither served nor
    closed.
    """
    loop = server.get_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    loop.call_soon(server.close)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
